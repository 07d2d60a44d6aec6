# ruff: noqa: E501 - lists of words read best in long lines
"""Words, names and numbers to make facts of, each in the part of one split.

The splits share none of them: words by a hash of the word, invented names by their beginnings,
numbers and codes by a hash of what is written. Only the days and months are everyone's.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable

from python_ref.data.sources import split_of


def draw(kind: str, split: str, rng: random.Random) -> str:
    """A word, name or number of a kind from the part of the split."""
    if kind in VOCABULARY:
        return rng.choice(VOCABULARY[kind][split])
    return GENERATORS[kind](split, rng)


def draw_distinct(kind: str, count: int, split: str, rng: random.Random) -> list[str]:
    """`count` different ones, in random order.

    Raises:
        ValueError: the split has hardly that many.
    """
    found: dict[str, None] = {}
    for _ in range(50 * count + 1000):
        if len(found) == count:
            return list(found)
        found[draw(kind, split, rng)] = None
    raise ValueError(f"count: {count} different values of kind {kind!r}, found {len(found)}")


def _split(words: Iterable[str]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    for word in words:
        parts[split_of(word)].append(word)
    return parts


VOCABULARY = {
    kind: _split(words.replace("\n", " ").strip().split(", "))
    for kind, words in {
        "noun": """anchor, apple, arrow, basket, beacon, blanket, bottle, bridge, bucket, button, cabin,
camera, candle, canyon, carpet, castle, cellar, chain, cherry, chimney, clock, cloud, compass,
copper, cotton, cradle, crystal, curtain, desert, diamond, drum, engine, feather, fence, flute,
forest, fountain, garden, glacier, glove, hammer, harbor, hammock, helmet, honey, island, ivory,
jacket, jungle, kettle, ladder, lantern, leather, lemon, lighthouse, magnet, marble, meadow, mirror,
mountain, needle, notebook, ocean, onion, orchard, oven, paddle, palace, pearl, pepper, piano,
pillow, planet, pocket, pumpkin, quilt, rainbow, ribbon, river, rocket, saddle, sail, shadow, shovel,
silver, spoon, stable, statue, temple, thunder, ticket, tower, trumpet, tunnel, umbrella, valley,
velvet, village, violin, wagon, walnut, whistle, willow, window, winter""",
        "adjective": """ancient, bitter, bright, broken, calm, clever, cold, crooked, dusty, eager, early,
empty, faint, fancy, fierce, frozen, gentle, golden, grand, hidden, hollow, humble, icy, jolly, lonely,
loud, lucky, misty, narrow, noble, pale, plain, polite, proud, quick, quiet, rapid, rough, rusty,
secret, shiny, silent, sleepy, smooth, steep, sunny, swift, tall, tender, tiny, warm, wild, wise,
young""",
        "name": """Aaron, Adele, Agnes, Alice, Amara, Andrew, Anita, Arthur, Beatrice, Ben, Bruno, Carla,
Carlos, Cecilia, Charles, Clara, Conrad, Daniel, Daphne, David, Diana, Dmitri, Edith, Eleanor, Elias,
Emil, Erik, Esther, Eva, Felix, Fiona, Frank, George, Grace, Greta, Hannah, Harold, Hector, Helen, Hugo,
Ingrid, Irene, Isaac, Ivan, Jack, Jasmine, Joan, Jonas, Julia, Karen, Kevin, Laura, Leo, Lily, Louis,
Lucas, Magda, Marcus, Maria, Martin, Maya, Miriam, Nadia, Nathan, Nina, Noah, Olga, Oliver, Omar, Oscar,
Paula, Peter, Priya, Quentin, Rachel, Ramon, Rita, Robert, Rosa, Rupert, Samuel, Sara, Simon, Sofia,
Stefan, Susan, Tara, Thomas, Tobias, Ulrich, Vera, Victor, Walter, Wendy, William, Yusuf, Zoe""",
        "surname": """Abbott, Adler, Baker, Barlow, Bishop, Brandt, Carver, Chandra, Cole, Cooper, Cruz, Dalton,
Diaz, Drake, Eckhart, Ellis, Farrell, Fischer, Fletcher, Garcia, Gibson, Grant, Haddad, Hale, Harper, Hayes,
Holt, Hughes, Ibrahim, Jensen, Keller, Khan, Kowalski, Lambert, Larsen, Lopez, Marsh, Mercer, Meyer, Mills,
Morales, Nakamura, Nash, Novak, Okafor, Olsen, Ortega, Parker, Patel, Petrov, Porter, Quinn, Ramos, Reed,
Rossi, Russell, Santos, Schmidt, Shaw, Silva, Singh, Sloan, Stone, Tanaka, Thorne, Turner, Vance, Vogel,
Walsh, Weber, Wolfe, Wright, Yamada, Young, Zhang""",
        "city": """Accra, Alexandria, Amsterdam, Antwerp, Athens, Baghdad, Baltimore, Bangkok, Barcelona, Belfast,
Bergen, Berlin, Bogota, Boston, Brussels, Budapest, Cairo, Calgary, Cape Town, Caracas, Chicago, Cleveland,
Copenhagen, Cork, Dakar, Dallas, Delhi, Denver, Detroit, Dublin, Edinburgh, Florence, Frankfurt, Geneva,
Glasgow, Hamburg, Hanoi, Havana, Helsinki, Houston, Istanbul, Jakarta, Kyoto, Lagos, Leeds, Lima, Lisbon,
Liverpool, London, Lyon, Madrid, Manila, Melbourne, Memphis, Miami, Milan, Montreal, Moscow, Mumbai, Munich,
Nairobi, Naples, Oslo, Ottawa, Oxford, Paris, Perth, Phoenix, Portland, Prague, Quebec, Riga, Rome, Rotterdam,
Salzburg, San Diego, Santiago, Seattle, Seoul, Seville, Shanghai, Singapore, Sofia, Stockholm, Sydney, Tehran,
Tokyo, Toronto, Tunis, Turin, Utrecht, Valencia, Vancouver, Venice, Vienna, Warsaw, York, Zagreb, Zurich""",
        "animal": """badger, bear, beaver, camel, cat, cheetah, cow, crab, crow, deer, dog, dolphin, donkey, duck,
eagle, elephant, falcon, ferret, fox, frog, giraffe, goat, goose, hamster, hawk, hedgehog, horse, jaguar,
kangaroo, koala, lion, lizard, llama, lobster, monkey, moose, mouse, octopus, otter, owl, panda, parrot,
peacock, penguin, pig, pigeon, rabbit, raven, rooster, salmon, seal, shark, sheep, snake, spider, squirrel,
swan, tiger, turkey, turtle, whale, wolf, zebra""",
        "color": """amber, beige, black, blue, bronze, brown, cream, crimson, cyan, emerald, gold, gray, green,
indigo, ivory, lavender, magenta, maroon, navy, olive, orange, pink, purple, red, scarlet, silver, teal,
turquoise, violet, white, yellow""",
        "food": """almonds, apricots, bacon, bagels, bananas, barley, beans, beets, biscuits, bread, broccoli,
butter, cabbage, carrots, cheese, chicken, chili, chocolate, coconut, cookies, corn, crackers, cucumber, curry,
dumplings, eggplant, eggs, figs, garlic, ginger, grapes, ham, lentils, lettuce, mango, mushrooms, mustard,
noodles, oatmeal, olives, oranges, pancakes, pasta, peaches, peanuts, pears, pickles, pizza, plums, popcorn,
potatoes, pudding, radishes, raisins, rice, salad, sausages, soup, spinach, strawberries, tacos, tofu,
tomatoes, tuna, waffles, yogurt""",
        "job": """accountant, actor, architect, baker, barber, biologist, butcher, carpenter, chemist, clerk,
coach, dentist, designer, detective, doctor, driver, editor, electrician, engineer, farmer, firefighter,
fisherman, florist, gardener, geologist, historian, janitor, jeweler, journalist, judge, lawyer, librarian,
mechanic, musician, nurse, painter, pharmacist, photographer, pilot, plumber, poet, programmer, sailor,
sculptor, singer, soldier, surgeon, tailor, teacher, translator, veterinarian, waiter""",
        "instrument": """accordion, banjo, bassoon, cello, clarinet, cornet, drums, fiddle, flute, guitar, harmonica,
harp, lute, mandolin, oboe, organ, piano, recorder, saxophone, tambourine, trombone, trumpet, tuba, ukulele,
viola, violin, xylophone""",
        "subject": """algebra, anatomy, archaeology, astronomy, biology, botany, chemistry, dance, economics,
ethics, geography, geology, geometry, grammar, history, journalism, law, linguistics, logic, medicine, music,
painting, philosophy, physics, poetry, psychology, rhetoric, sculpture, sociology, statistics, theology,
zoology""",
        "word": """able, absent, accept, accident, account, achieve, acid, acre, action, active, actual, adapt, address,
adjust, admire, admit, adopt, adult, advance, advice, afford, afraid, afternoon, agency, agent, agree,
ahead, aim, air, airport, alarm, album, alert, alike, alive, allow, alter, amaze, amount, amuse, angle,
angry, ankle, annual, answer, anxious, apart, appeal, appear, approve, arch, area, argue, arise, arm,
army, arrange, arrest, arrive, article, artist, ash, ask, asleep, aspect, assist, assume, attach, attack,
attempt, attend, attic, attract, auction, aunt, author, auto, autumn, average, avoid, awake, award,
aware, awful, baby, back, bad, bag, balance, balcony, ball, bamboo, band, bank, bar, bare, bargain, bark,
barn, barrel, base, basic, basin, bat, bath, battery, battle, bay, beach, bead, beam, beard, beat,
beauty, become, bed, bee, beef, begin, behave, being, belief, bell, belong, belt, bench, bend, benefit,
berry, best, better, bike, bill, bird, birth, bite, blade, blame, blank, blast, blend, bless, blind,
block, blood, bloom, blow, board, boast, boat, body, boil, bold, bolt, bone, bonus, book, boot, border,
borrow, boss, bother, bottom, bounce, bow, bowl, box, boy, brain, branch, brass, brave, breakfast,
breath, breed, breeze, brick, bride, brief, bring, broad, brother, brush, bubble, budget, build, bulb,
bull, bump, bunch, burden, burn, burst, bus, bush, business, busy, buy, buzz, cable, cage, cake,
calendar, call, camp, canal, cancel, candy, cane, canvas, cap, capital, captain, car, carbon, card, care,
cargo, carry, cart, carve, case, cash, cast, catch, cattle, cause, cave, cease, ceiling, celery, cell,
cement, center, century, ceremony, chair, chalk, chance, change, channel, chapter, charge, charm, chart,
chase, cheap, check, cheek, cheer, chef, chest, chew, chief, child, chin, chip, choice, choose, chorus,
church, circle, citizen, city, civil, claim, clap, class, clay, clean, clear, click, cliff, climate,
climb, clip, closet, cloth, clown, club, clue, coal, coast, coat, code, coffee, coin, collar, collect,
college, column, comb, comfort, comic, common, company, compare, complete, concert, condition, cone,
confirm, connect, consider, contact, contain, contest, control, cook, cool, copy, coral, core, cork,
corner, correct, cost, cottage, couch, cough, council, count, country, couple, courage, course, court,
cousin, cover, coward, crack, craft, crane, crash, crate, crawl, crazy, creek, creep, crew, cricket,
crime, crisp, crop, cross, crowd, crown, cruel, crush, cry, cube, cup, cupboard, curb, cure, curious,
curl, current, curve, cushion, custom, cut, cycle, daily, damage, damp, danger, dare, dark, dash, data,
daughter, dawn, deal, dear, debate, debt, decade, decide, deck, declare, deep, defeat, defend, degree,
delay, deliver, demand, dense, deny, depend, depth, describe, deserve, design, desk, detail, develop,
device, devote, dial, diary, dictionary, diet, differ, dig, dinner, direct, dirt, disagree, discover,
discuss, dish, dismiss, distance, ditch, dive, divide, dock, doll, dollar, domain, door, dot, double,
doubt, dough, down, dozen, draft, drag, drain, drama, draw, drawer, dream, dress, drift, drill, drink,
drive, drop, dry, due, dull, dump, dust, duty, ear, earn, earth, ease, east, easy, echo, edge, educate,
effect, effort, elbow, elder, elect, elegant, element, embrace, emerge, emotion, employ, enable, end,
enemy, energy, enjoy, enter, entire, envelope, equal, error, escape, essay, estate, evening, event, evil,
exact, examine, example, excellent, except, exchange, excite, excuse, exercise, exist, exit, expand,
expect, expense, expert, explain, explore, export, express, extend, extra, eye, fabric, face, fact,
factory, fade, fail, fair, faith, fall, false, fame, family, famous, far, fare, farm, fashion, fast, fat,
fate, father, fault, favor, fear, feast, federal, fee, feed, feel, fellow, festival, fetch, fever, field,
fig, fight, figure, file, fill, film, filter, final, find, fine, finger, finish, fire, firm, first, fish,
fist, fit, fix, flag, flame, flash, flat, flavor, flesh, flight, float, flock, flood, floor, flour, flow,
flower, fluid, fly, foam, focus, fog, fold, folk, follow, fond, foot, force, fork, form, formal, fortune,
forward, found, frame, free, freight, fresh, friend, fright, frost, fruit, fry, fuel, full, fun, fund,
funny, fur, furniture, future, gain, gallery, game, gap, garage, gas, gate, gather, gauge, gaze, gear,
gem, general, gift, girl, give, glad, glance, glass, globe, glory, glow, glue, goal, good, govern, gown,
grab, grade, grain, grandmother, graph, grass, grave, gravel, great, greet, grid, grief, grill, grin,
grip, grocery, ground, group, grow, guard, guess, guest, guide, guilt, gum, guy, habit, hair, half, hall,
hand, handle, hang, happen, happy, hard, harm, harvest, hat, hate, haul, hay, head, health, heap, hear,
heart, heat, heavy, heel, height, help, herb, herd, hero, hide, high, hike, hill, hint, hire, hit, hobby,
hold, hole, holiday, home, honest, honor, hook, hope, horn, hospital, host, hotel, hour, house, hug,
huge, human, hundred, hungry, hunt, hurry, hurt, husband, ice, idea, ideal, idle, ignore, image, imagine,
impact, import, improve, inch, include, income, increase, indeed, index, indoor, infant, inform, ink,
inner, input, insect, inside, insist, inspect, install, instant, instead, insult, intend, invent, invest,
invite, iron, issue, item, jar, jaw, jeans, jelly, jewel, job, join, joint, joke, journey, joy, juice,
jump, junior, jury, just, keen, keep, key, kick, kid, kind, king, kitchen, kite, knee, knife, knit,
knock, knot, know, label, labor, lack, lady, lake, lamp, land, lane, language, lap, large, laser, last,
late, laugh, launch, laundry, lawn, lay, layer, lazy, lead, leaf, lean, learn, least, leave, lecture,
left, leg, legal, legend, lend, length, lesson, letter, level, liberty, lid, lift, light, like, limb,
limit, line, link, lip, liquid, list, listen, little, live, load, loaf, loan, lobby, local, lock, log,
long, look, loop, loose, lord, lose, loss, lot, love, low, loyal, luck, luggage, lunch, lung, machine,
magic, mail, main, major, make, mall, manage, manner, map, march, margin, mark, market, marry, mask,
mass, master, mat, match, material, math, matter, maximum, mayor, meal, mean, measure, meat, medal,
media, meet, melody, melt, member, memory, mend, mental, menu, mercy, merge, merit, merry, mess, metal,
method, middle, mild, mile, milk, mill, mind, mine, minor, minute, miss, mistake, mix, mode, model,
modern, modest, moment, money, month, mood, moon, moral, morning, motion, motor, mount, mouth, move,
movie, mud, multiply, muscle, museum, mystery, nail, name, napkin, nation, nature, neat, neck, need,
neighbor, nephew, nerve, nest, net, network, new, next, nice, niece, night, nod, noise, noon, normal,
north, nose, note, notice, novel, number, nut, oak, obey, object, oblige, observe, obtain, obvious,
occupy, occur, odd, offer, office, often, oil, old, open, operate, opinion, oppose, orbit, order, origin,
other, outfit, outside, oval, owe, own, pace, pack, page, pain, paint, pair, palm, pan, panel, panic,
paper, parade, parent, park, part, party, pass, past, paste, patch, path, patient, pattern, pause, pave,
pay, peace, peak, peel, pen, pencil, people, perfect, perform, period, permit, person, phone, phrase,
pick, picnic, picture, piece, pile, pilgrim, pin, pine, pint, pipe, pit, pitch, place, plan, plane,
plant, plastic, plate, play, please, plenty, plot, plow, plug, plus, poem, point, pole, police, policy,
pond, pool, poor, pop, porch, port, pose, position, possible, post, pot, pound, pour, powder, power,
practice, praise, pray, prefer, prepare, present, press, pretend, pretty, prevent, price, pride, priest,
prince, print, prison, private, prize, problem, process, produce, profit, program, promise, proof,
proper, protect, prove, provide, public, pull, pulse, pump, punch, pupil, pure, purpose, purse, push,
put, puzzle, quality, quarter, queen, question, quit, quiz, quote, race, rack, radio, rag, rail, rain,
raise, ranch, range, rank, rare, rate, raw, ray, reach, react, read, ready, real, reason, recall,
receive, recipe, record, reduce, refer, reflect, refuse, regard, region, regret, regular, reject, relate,
relax, release, rely, remain, remark, remind, remote, remove, rent, repair, repeat, replace, reply,
report, rescue, resist, resort, respect, rest, result, retire, return, reveal, review, reward, rhythm,
rich, ride, right, ring, rip, ripe, rise, risk, rival, road, roar, roast, rob, robe, robot, rock, rod,
role, roll, roof, room, root, rope, rose, rotate, round, route, row, royal, rub, rubber, rude, rug, ruin,
rule, run, rural, rush, sack, sacred, sad, safe, salt, sample, sand, sauce, save, saw, say, scale, scarf,
scatter, scene, scent, school, science, score, scrap, scratch, scream, screen, screw, script, sea,
search, season, seat, second, section, seed, seek, seem, seize, sell, send, senior, sense, separate,
series, serve, session, set, settle, sew, shade, shake, shallow, shape, share, sharp, shave, shed, sheet,
shelf, shell, shelter, shield, shift, shine, ship, shirt, shock, shoe, shoot, shop, shore, short, shout,
show, shower, shrink, shut, shy, sick, side, sigh, sight, sign, signal, silk, simple, sing, sink, sister,
site, size, skate, sketch, skill, skin, skirt, sky, slap, sleep, sleeve, slice, slide, slip, slope, slow,
small, smart, smell, smile, smoke, snap, snow, soap, soccer, social, sock, soft, soil, solar, solid,
solve, song, sorry, sort, soul, sound, source, south, space, spare, spark, speak, special, speech, speed,
spell, spend, spice, spin, spirit, split, spoil, sport, spot, spread, spring, square, stack, staff,
stage, stair, stake, stamp, stand, star, stare, start, state, station, stay, steady, steal, steam, steel,
stem, step, stick, stiff, still, stir, stock, stomach, stone, stop, store, storm, story, stove, strange,
straw, stream, street, strength, stress, stretch, strict, strike, string, strip, strong, studio, study,
stuff, style, succeed, sudden, suffer, sugar, suggest, suit, sum, summer, sun, supper, supply, support,
suppose, sure, surface, surprise, surround, survey, survive, suspect, swallow, sweat, sweep, sweet,
swell, swim, swing, switch, sword, symbol, system, table, tail, take, tale, talent, talk, tank, tap,
tape, target, task, taste, tax, tea, teach, team, tear, tease, tell, temper, tend, tennis, tent, term,
test, text, thank, theater, theory, thick, thief, thin, thing, think, third, thirst, thorn, thread,
threat, throat, throne, throw, thumb, tide, tie, tight, tile, timber, time, tin, tip, tire, tissue,
title, toast, today, toe, together, tomorrow, tone, tongue, tonight, tool, tooth, top, topic, torch,
toss, total, touch, tough, tour, towel, town, toy, trace, track, trade, traffic, trail, train, transfer,
trap, travel, tray, treasure, treat, tree, trend, trial, tribe, trick, trip, troop, trouble, truck, true,
trunk, trust, truth, try, tube, tune, turn, twice, twin, twist, type, ugly, uncle, uniform, union,
unique, unit, upper, upset, urge, use, useful, usual, vacation, vacuum, value, van, vanish, vapor, vary,
vase, vast, vault, vegetable, vehicle, verb, verse, vessel, victory, video, view, vine, visit, visitor,
voice, volume, vote, vowel, voyage, wage, waist, wait, wake, walk, wall, wallet, wander, want, wardrobe,
warn, wash, waste, watch, water, wave, wax, way, weak, wealth, wear, weather, wedding, weed, week, weigh,
weight, welcome, west, wet, wheat, wheel, whip, whisper, wide, widow, width, wife, win, wind, wine, wing,
wipe, wire, wish, witness, woman, wonder, wood, wool, word, work, world, worm, worry, worth, wound, wrap,
wreck, wrist, write, wrong, yard, yarn, year, yell, yesterday, yield, zone""",
        "sport": """archery, badminton, baseball, basketball, bowling, boxing, canoeing, climbing, cricket,
cycling, diving, fencing, fishing, football, golf, gymnastics, handball, hockey, judo, karate, polo, rowing,
rugby, running, sailing, skating, skiing, soccer, surfing, swimming, tennis, volleyball, wrestling""",
        "language": """Arabic, Basque, Bengali, Catalan, Chinese, Czech, Danish, Dutch, Finnish, French, German,
Greek, Hebrew, Hindi, Hungarian, Irish, Italian, Japanese, Korean, Latin, Norwegian, Persian, Polish,
Portuguese, Romanian, Russian, Spanish, Swahili, Swedish, Thai, Turkish, Urdu, Welsh""",
        "country": """Albania, Argentina, Australia, Austria, Belgium, Bolivia, Brazil, Bulgaria, Canada, Chile,
China, Colombia, Cuba, Cyprus, Denmark, Ecuador, Egypt, Estonia, Ethiopia, Finland, France, Germany, Ghana,
Greece, Hungary, Iceland, India, Indonesia, Iran, Ireland, Israel, Italy, Jamaica, Japan, Jordan, Kenya,
Latvia, Malaysia, Mali, Mexico, Mongolia, Morocco, Nepal, Nigeria, Norway, Pakistan, Panama, Peru, Poland,
Portugal, Romania, Senegal, Spain, Sudan, Sweden, Switzerland, Thailand, Tunisia, Turkey, Uganda, Ukraine,
Uruguay, Vietnam, Zambia""",
        "flower": """asters, azaleas, begonias, bluebells, buttercups, carnations, daffodils, dahlias, daisies,
geraniums, irises, lilacs, lilies, lupins, marigolds, orchids, peonies, petunias, poppies, roses, snowdrops,
sunflowers, tulips, violets""",
        "material": """aluminum, bamboo, bone, brass, brick, bronze, cardboard, clay, concrete, copper, cork,
cotton, felt, glass, gold, granite, iron, leather, linen, marble, paper, plastic, porcelain, rubber, silk,
silver, steel, stone, straw, tin, velvet, wax, wire, wood, wool""",
        "drink": """ale, brandy, buttermilk, champagne, cider, cocoa, coffee, gin, juice, lemonade, milk, punch,
rum, soda, tea, tonic, vermouth, vodka, water, whiskey, wine, cola, mead, nectar, sherry, cordial, espresso""",
        "vehicle": """ambulance, balloon, barge, bicycle, boat, bus, canoe, car, carriage, ferry, helicopter,
jeep, motorcycle, plane, raft, scooter, ship, sled, subway, taxi, tractor, train, tram, truck, van, yacht""",
        "day": """Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday""",
        "month": """January, February, March, April, May, June, July, August, September, October, November,
December""",
    }.items()
}
for _kind in ("day", "month"):  # too few to be split
    _all = [word for part in VOCABULARY[_kind].values() for word in part]
    VOCABULARY[_kind] = dict.fromkeys(("train", "dev", "test"), _all)

_MONTHS = VOCABULARY["month"]["train"]

# The invented names of the splits share no beginning.
_ONSETS = {
    "train": ["Bal", "Dor", "Fen", "Gal", "Kor", "Mar", "Nol", "Per", "Ras", "Tel", "Vor", "Zan"],
    "dev": ["Cal", "Hol", "Lum", "Sel"],
    "test": ["Bren", "Jor", "Quil", "Wex"],
}
_ENDINGS = ["ado", "aris", "eth", "enna", "ick", "ima", "olin", "on", "or", "una", "uth", "wyn"]


Generator = Callable[[str, random.Random], str]


def _joined(separator: str, *kinds: str) -> Generator:
    """Parts of other kinds; the parts are of the split."""
    return lambda split, rng: separator.join(draw(kind, split, rng) for kind in kinds)


def _list(kind: str, count: int) -> Generator:
    """Different items of a kind: `a, b and c`."""

    def generate(split: str, rng: random.Random) -> str:
        *items, last = draw_distinct(kind, count, split, rng)
        return ", ".join(items) + " and " + last

    return generate


def _own(make: Callable[[random.Random], str]) -> Generator:
    """What `make` makes, if it belongs to the split."""

    def generate(split: str, rng: random.Random) -> str:
        while True:
            value = make(rng)
            if split_of(value) == split:
                return value

    return generate


def _digits(count: int) -> Generator:
    return _own(lambda rng: str(rng.randrange(10 ** (count - 1), 10**count)))


def _letters(count: int, alphabet: str, rng: random.Random) -> str:
    return "".join(rng.choice(alphabet) for _ in range(count))


_CAPITALS = "ABCDEFGHJKLMNPQRSTUVWXYZ"  # without I, which looks like 1

GENERATORS: dict[str, Generator] = {
    "digits2": _digits(2),
    "digits3": _digits(3),
    "digits4": _digits(4),
    "digits5": _digits(5),
    "digits6": _digits(6),
    "digits7": _digits(7),
    "year": _own(lambda rng: str(rng.randrange(1500, 2024))),
    "time": _own(lambda rng: f"{rng.randrange(1, 13)}:{rng.randrange(60):02}"),
    "price": _own(lambda rng: f"${rng.randrange(11, 990)}.{rng.randrange(100):02}"),
    "phone": _own(lambda rng: f"555-{rng.randrange(1000, 10000)}"),
    "code": _own(lambda rng: f"{_letters(2, _CAPITALS, rng)}-{rng.randrange(100, 10000)}"),
    "letters": _own(lambda rng: _letters(4, _CAPITALS, rng)),
    "seat": _own(lambda rng: f"{rng.randrange(1, 60)}{rng.choice('ABCDEF')}"),
    "percent": _own(lambda rng: f"{rng.randrange(11, 99)} percent"),
    "version": _own(lambda rng: f"{rng.randrange(1, 20)}.{rng.randrange(30)}.{rng.randrange(30)}"),
    "uuid": _own(lambda rng: str(uuid.UUID(int=rng.getrandbits(128), version=4))),
    "symbol": _own(lambda rng: _letters(5, _CAPITALS, rng)),  # RULER's names of variables
    "coded": _own(lambda rng: _letters(6, "abcdefghijklmnopqrstuvwxyz", rng)),  # its coded words
    "date": _own(lambda rng: f"{rng.choice(_MONTHS)} {rng.randrange(1, 29)}"),
    "kilograms": _own(lambda rng: f"{rng.randrange(11, 2000)} kg"),
    "degrees": _own(lambda rng: f"{rng.randrange(-30, 45)} degrees"),
    "score": _own(lambda rng: f"{rng.randrange(30)}:{rng.randrange(30)}"),
    "hex": _own(lambda rng: _letters(8, "0123456789abcdef", rng)),
    "ip": _own(lambda rng: f"10.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(256)}"),
    "pair": _joined(" ", "adjective", "noun"),
    "dashed": _joined("-", "adjective", "noun"),
    "variable": _joined("_", "adjective", "noun"),
    "person": _joined(" ", "name", "surname"),
    "colored": _joined(" ", "color", "animal"),
    "key": _joined("-", "adjective", "word"),
    "foods": _list("food", 3),
    "names": _list("name", 2),
    "colors": _list("color", 3),
    "company": _joined(" & ", "surname", "surname"),
    "street": lambda split, rng: (
        f"{draw('digits2', split, rng)} {draw('invented', split, rng)} Street"
    ),
    "title": lambda split, rng: f"The {draw('pair', split, rng).title()}",
    "email": lambda split, rng: (
        f"{draw('name', split, rng)}@{draw('invented', split, rng)}.org".lower()
    ),
    "url": lambda split, rng: (
        f"www.{draw('invented', split, rng).lower()}.org/{draw('digits4', split, rng)}"
    ),
    "invented": lambda split, rng: rng.choice(_ONSETS[split]) + rng.choice(_ENDINGS),
}


def words(split: str) -> list[str]:
    """All the single common words of the split, in alphabetical order."""
    kinds = ("noun", "adjective", "animal", "food", "job", "word")
    return sorted({word for kind in kinds for word in VOCABULARY[kind][split]})
