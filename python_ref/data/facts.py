# ruff: noqa: E501 - one wording a line reads best
"""Small facts to hide in a text, and the questions that ask for them.

A template states a fact about a key (`{key}`) with a value (`{value}`) in several wordings, and
asks for the value in several wordings, each ending where the value has to follow. A policy that
learns from few templates becomes a detector of their surface, such as digits or odd words, so the
templates vary in what they are about, in the kind of their values and in form: prose, records,
dialogue, code. The templates, keys and values of the splits are disjoint.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from python_ref.data.sources import split_of


@dataclass(frozen=True)
class Template:
    """Wordings of a fact and of the questions for it; `key` and `value` are kinds, see `draw`."""

    split: str
    key: str
    value: str
    facts: tuple[str, ...]
    questions: tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """A stated fact. `statement` holds `value`; `question` is answered by " " + `value`."""

    statement: str
    question: str
    value: str


def templates(split: str) -> list[Template]:
    """The templates of "train", "dev" or "test"."""
    return [template for template in TEMPLATES if template.split == split]


def instantiate(template: Template, rng: random.Random) -> Fact:
    """A fact of this template with a key and a value of its split."""
    key = draw(template.key, template.split, rng)
    value = draw(template.value, template.split, rng)
    while value in key:  # or the question would give the answer away
        value = draw(template.value, template.split, rng)
    return Fact(
        rng.choice(template.facts).format(key=key, value=value),
        rng.choice(template.questions).format(key=key),
        value,
    )


def draw(kind: str, split: str, rng: random.Random) -> str:
    """A key or value of a kind; words come from the part of the vocabulary that is `split`'s."""
    if kind in VOCABULARY:
        return rng.choice(VOCABULARY[kind][split])
    return GENERATORS[kind](split, rng)


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
        "day": """Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday""",
        "month": """January, February, March, April, May, June, July, August, September, October, November,
December""",
    }.items()
}
for _kind in ("day", "month"):  # too few to be split
    _all = [word for part in VOCABULARY[_kind].values() for word in part]
    VOCABULARY[_kind] = dict.fromkeys(("train", "dev", "test"), _all)

# The invented names of the splits share no beginning.
_ONSETS = {
    "train": ["Bal", "Dor", "Fen", "Gal", "Kor", "Mar", "Nol", "Per", "Ras", "Tel", "Vor", "Zan"],
    "dev": ["Cal", "Hol", "Lum", "Sel"],
    "test": ["Bren", "Jor", "Quil", "Wex"],
}
_ENDINGS = ["ado", "aris", "eth", "enna", "ick", "ima", "olin", "on", "or", "una", "uth", "wyn"]


def _digits(count: int) -> Callable[[str, random.Random], str]:
    return lambda split, rng: str(rng.randrange(10 ** (count - 1), 10**count))


def _joined(separator: str, *kinds: str) -> Callable[[str, random.Random], str]:
    return lambda split, rng: separator.join(draw(kind, split, rng) for kind in kinds)


def _letters(count: int, rng: random.Random) -> str:
    return "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(count))


GENERATORS: dict[str, Callable[[str, random.Random], str]] = {
    "digits2": _digits(2),
    "digits3": _digits(3),
    "digits4": _digits(4),
    "digits5": _digits(5),
    "digits6": _digits(6),
    "digits7": _digits(7),
    "year": lambda split, rng: str(rng.randrange(1500, 2024)),
    "time": lambda split, rng: f"{rng.randrange(1, 13)}:{rng.randrange(60):02}",
    "date": lambda split, rng: f"{draw('month', split, rng)} {rng.randrange(1, 29)}",
    "price": lambda split, rng: f"${rng.randrange(11, 990)}.{rng.randrange(100):02}",
    "phone": lambda split, rng: f"555-{rng.randrange(1000, 10000)}",
    "code": lambda split, rng: f"{_letters(2, rng)}-{rng.randrange(100, 10000)}",
    "letters": lambda split, rng: _letters(4, rng),
    "seat": lambda split, rng: f"{rng.randrange(1, 60)}{rng.choice('ABCDEF')}",
    "percent": lambda split, rng: f"{rng.randrange(11, 99)}%",
    "version": lambda split, rng: f"{rng.randrange(1, 20)}.{rng.randrange(30)}.{rng.randrange(30)}",
    "pair": _joined(" ", "adjective", "noun"),
    "dashed": _joined("-", "adjective", "noun"),
    "variable": _joined("_", "adjective", "noun"),
    "person": _joined(" ", "name", "surname"),
    "colored": _joined(" ", "color", "animal"),
    "invented": lambda split, rng: rng.choice(_ONSETS[split]) + rng.choice(_ENDINGS),
}


def _template(split: str, key: str, value: str, facts: str, questions: str) -> Template:
    """`facts` and `questions` hold one wording a line."""
    return Template(
        split,
        key,
        value,
        tuple(line.strip() for line in facts.strip().splitlines()),
        tuple(line.strip() for line in questions.strip().splitlines()),
    )


TEMPLATES = [
    # --- numbers
    _template(
        "train",
        "city",
        "digits7",
        """One of the special magic numbers for {key} is: {value}.
        The special magic number for {key} is {value}.""",
        """What is the special magic number for {key} mentioned in the text? The special magic number for {key} is
        Question: What is the magic number for {key}? Answer: The special magic number for {key} is""",
    ),
    _template(
        "train",
        "name",
        "digits4",
        """The locker of {key} opens with the combination {value}.
        {key}'s locker combination is {value}.""",
        """Question: Which combination opens {key}'s locker? Answer: The combination of {key}'s locker is
        To open the locker of {key}, one has to use the combination""",
    ),
    _template(
        "train",
        "pair",
        "digits5",
        """The access code of the {key} is {value}.
        Remember that the access code for the {key} is {value}.""",
        """Question: What is the access code of the {key}? Answer: The access code of the {key} is
        As stated above, the access code for the {key} is""",
    ),
    _template(
        "train",
        "surname",
        "digits3",
        """Dr. {key} sees patients in room {value}.
        The office of Dr. {key} is in room {value}.""",
        """Question: In which room is Dr. {key}? Answer: Dr. {key} is in room
        I am looking for Dr. {key}. You will find Dr. {key} in room""",
    ),
    _template(
        "train",
        "person",
        "phone",
        """You can reach {key} at {value}.
        {key}'s telephone number is {value}.""",
        """Question: What is the telephone number of {key}? Answer: The number of {key} is
        If you need to call {key}, the number is""",
    ),
    _template(
        "train",
        "noun",
        "price",
        """The {key} in the shop window costs {value}.
        They sold the old {key} for {value}.""",
        """Question: What was the price of the {key}? Answer: The price of the {key} was
        How much was the {key}? The {key} was""",
    ),
    _template(
        "train",
        "city",
        "year",
        """The old library of {key} was founded in {value}.
        In {key}, the library opened its doors in {value}.""",
        """Question: When was the library of {key} founded? Answer: The library of {key} was founded in
        The year in which the library of {key} opened was""",
    ),
    _template(
        "train",
        "color",
        "digits6",
        """The serial number on the {key} box is {value}.
        Written on the {key} box was the serial number {value}.""",
        """Question: What is the serial number of the {key} box? Answer: The serial number of the {key} box is
        The {key} box has the serial number""",
    ),
    _template(
        "train",
        "city",
        "time",
        """The train to {key} leaves at {value}.
        Departure of the {key} train: {value}.""",
        """Question: When does the train to {key} leave? Answer: The train to {key} leaves at
        I need to catch the {key} train. It leaves at""",
    ),
    _template(
        "train",
        "animal",
        "digits2",
        """There are exactly {value} {key}s on the farm.
        Last spring the farmer counted {value} {key}s.""",
        """Question: How many {key}s are there on the farm? Answer: On the farm the number of {key}s is
        The number of {key}s that the farmer counted is""",
    ),
    _template(
        "train",
        "invented",
        "percent",
        """In the survey, {value} of the people of {key} agreed.
        The rate reported for {key} was {value}.""",
        """Question: Which rate was reported for {key}? Answer: The rate for {key} was
        According to the survey, the share of people who agreed in {key} was""",
    ),
    _template(
        "train",
        "variable",
        "digits4",
        """{key} = {value}
        The parameter {key} is set to {value}.""",
        """What is the value of {key}? {key} =
        Print the value of {key}: {key} =""",
    ),
    # --- codes and dates
    _template(
        "train",
        "person",
        "seat",
        """{key} has a ticket for seat {value}.
        Seat {value} is reserved for {key}.""",
        """Question: Which seat is reserved for {key}? Answer: {key} has seat
        {key} asked for the seat on the ticket, which was seat""",
    ),
    _template(
        "train",
        "pair",
        "code",
        """The part number of the {key} is {value}.
        Please order another {key}, part number {value}.""",
        """Question: What is the part number of the {key}? Answer: The part number of the {key} is
        To order another {key}, use part number""",
    ),
    _template(
        "train",
        "name",
        "date",
        """{key}'s birthday is on {value}.
        We celebrate the birthday of {key} on {value}.""",
        """Question: When is the birthday of {key}? Answer: The birthday of {key} is on
        {key} was asked about the birthday. It is on""",
    ),
    _template(
        "train",
        "invented",
        "version",
        """The current release of {key} is version {value}.
        {key} was upgraded to version {value}.""",
        """Question: Which version of {key} is installed? Answer: {key} is at version
        The latest version of {key} is version""",
    ),
    _template(
        "train",
        "surname",
        "letters",
        """The call sign of Captain {key} is {value}.
        Captain {key} answers to the call sign {value}.""",
        """Question: What is the call sign of Captain {key}? Answer: The call sign of Captain {key} is
        On the radio Captain {key} uses the call sign""",
    ),
    # --- words
    _template(
        "train",
        "city",
        "noun",
        """The secret word for {key} is {value}.
        Remember the secret word of {key}: {value}.""",
        """What is the secret word for {key}? The secret word for {key} is
        Question: Which secret word belongs to {key}? Answer: The secret word for {key} is""",
    ),
    _template(
        "train",
        "name",
        "dashed",
        """{key}'s password is {value}.
        The password that {key} chose is {value}.""",
        """Question: What is {key}'s password? Answer: {key}'s password is
        To log in as {key}, type the password""",
    ),
    _template(
        "train",
        "name",
        "animal",
        """{key} has always wanted to keep a pet {value}.
        The pet of {key} is a {value}.""",
        """Question: What is the pet of {key}? Answer: The pet of {key} is a
        The animal that {key} keeps as a pet is a""",
    ),
    _template(
        "train",
        "name",
        "color",
        """{key} painted the door {value}.
        The door of {key}'s house is {value}.""",
        """Question: What is the color of {key}'s door? Answer: The color of {key}'s door is
        The house of {key} is easy to find, because the color of its door is""",
    ),
    _template(
        "train",
        "name",
        "food",
        """For lunch {key} ordered {value}.
        {key} had {value} for lunch today.""",
        """Question: What did {key} have for lunch? Answer: For lunch {key} had
        At the table {key} was eating the lunch, which was""",
    ),
    _template(
        "train",
        "pair",
        "noun",
        """Inside the {key} they found a small {value}.
        Someone had hidden a {value} in the {key}.""",
        """Question: What was hidden in the {key}? Answer: Hidden in the {key} was a
        When they opened the {key}, they found a""",
    ),
    _template(
        "train",
        "person",
        "job",
        """{key} works as a {value}.
        After school, {key} became a {value}.""",
        """Question: What is the profession of {key}? Answer: {key} is a
        The occupation of {key} is that of a""",
    ),
    _template(
        "train",
        "noun",
        "pair",
        """The key to the {key} lies under the {value}.
        You will find the key of the {key} beneath the {value}.""",
        """Question: Where is the key to the {key}? Answer: The key to the {key} is under the
        To get the key of the {key}, look under the""",
    ),
    _template(
        "train",
        "day",
        "food",
        """On {key} the canteen serves {value}.
        The canteen's dish for {key} is {value}.""",
        """Question: What does the canteen serve on {key}? Answer: On {key} the canteen serves
        Menu of the canteen, {key}:""",
    ),
    # --- names and places
    _template(
        "train",
        "name",
        "city",
        """{key} was born in {value}.
        The birthplace of {key} is {value}.""",
        """Question: Where was {key} born? Answer: {key} was born in
        The city in which {key} was born is""",
    ),
    _template(
        "train",
        "pair",
        "person",
        """The owner of the {key} is {value}.
        The {key} belongs to {value}.""",
        """Question: Who owns the {key}? Answer: The owner of the {key} is
        The {key} is the property of""",
    ),
    _template(
        "train",
        "invented",
        "name",
        """The village of {key} is governed by {value}.
        In {key}, everyone listens to the mayor, {value}.""",
        """Question: Who is the mayor of {key}? Answer: The mayor of {key} is
        The village of {key} has a mayor called""",
    ),
    _template(
        "train",
        "person",
        "invented",
        """{key} grew up in the village of {value}.
        The home village of {key} is {value}.""",
        """Question: In which village did {key} grow up? Answer: {key} grew up in
        {key} often remembers the home village, which is called""",
    ),
    _template(
        "train",
        "surname",
        "city",
        """Professor {key} gave the lecture in {value}.
        The lecture of Professor {key} took place in {value}.""",
        """Question: Where was the lecture of Professor {key}? Answer: Professor {key} gave the lecture in
        The place of Professor {key}'s lecture was""",
    ),
    _template(
        "train",
        "colored",
        "person",
        """The story of the {key} was written by {value}.
        {value} is the author of the story about the {key}.""",
        """Question: Who wrote the story of the {key}? Answer: The story of the {key} was written by
        The author of the story about the {key} is""",
    ),
    # --- records and dialogue
    _template(
        "train",
        "invented",
        "digits5",
        """| {key} | {value} |
        {key}: {value}""",
        """Look up {key} in the table: | {key} |
        The entry for {key} is {key}:""",
    ),
    _template(
        "train",
        "person",
        "code",
        """Employee: {key}, ID: {value}
        Name: {key}. Badge: {value}.""",
        """Question: What is the ID of {key}? Answer: The ID of {key} is
        Employee: {key}, ID:""",
    ),
    _template(
        "train",
        "name",
        "digits7",
        """"My account number is {value}," said {key}.
        {key}: Hello, my account number is {value}.""",
        """Question: What is the account number of {key}? Answer: The account number of {key} is
        {key} repeated the account number:""",
    ),
    _template(
        "train",
        "variable",
        "dashed",
        """"{key}": "{value}",
        {key}: {value}""",
        """Question: What is the setting of {key}? Answer: The setting of {key} is
        The configuration sets {key} to""",
    ),
    _template(
        "train",
        "name",
        "instrument",
        """"I play the {value}," {key} told them.
        {key} has played the {value} since childhood.""",
        """Question: Which instrument does {key} play? Answer: {key} plays the
        In the orchestra {key} plays the""",
    ),
    _template(
        "train",
        "name",
        "subject",
        """{key} is going to study {value} next year.
        {key}: I have decided to study {value}.""",
        """Question: What will {key} study? Answer: {key} will study
        The subject that {key} has chosen is""",
    ),
    # --- development: choices are made on these
    _template(
        "dev",
        "pair",
        "digits7",
        """The vault behind the {key} is unlocked by {value}.""",
        """Question: Which number unlocks the vault behind the {key}? Answer: The vault behind the {key} is unlocked by""",
    ),
    _template(
        "dev",
        "city",
        "digits5",
        """Flight {value} is the only one that goes to {key}.
        The flight to {key} has the number {value}.""",
        """Question: What is the number of the flight to {key}? Answer: The flight to {key} has the number""",
    ),
    _template(
        "dev",
        "person",
        "date",
        """The appointment of {key} was moved to {value}.""",
        """Question: When is the appointment of {key}? Answer: The appointment of {key} is on""",
    ),
    _template(
        "dev",
        "invented",
        "code",
        """Parcels for {key} carry the label {value}.""",
        """Question: Which label do parcels for {key} carry? Answer: Parcels for {key} carry the label""",
    ),
    _template(
        "dev",
        "name",
        "noun",
        """{key} bought a {value} at the market.""",
        """Question: What did {key} buy at the market? Answer: At the market {key} bought a""",
    ),
    _template(
        "dev",
        "surname",
        "animal",
        """The coat of arms of the {key} family shows a {value}.""",
        """Question: Which animal is on the coat of arms of the {key} family? Answer: The coat of arms of the {key} family shows a""",
    ),
    _template(
        "dev",
        "colored",
        "city",
        """The statue of the {key} stands in {value}.""",
        """Question: In which city is the statue of the {key}? Answer: The statue of the {key} stands in""",
    ),
    _template(
        "dev",
        "pair",
        "person",
        """The {key} was discovered by {value}.""",
        """Question: Who discovered the {key}? Answer: The {key} was discovered by""",
    ),
    # --- test: opened once
    _template(
        "test",
        "pair",
        "digits7",
        """To disarm the alarm of the {key}, type {value}.""",
        """Question: What disarms the alarm of the {key}? Answer: To disarm the alarm of the {key}, type""",
    ),
    _template(
        "test",
        "person",
        "digits6",
        """The passport number of {key} ends in {value}.""",
        """Question: How does the passport number of {key} end? Answer: The passport number of {key} ends in""",
    ),
    _template(
        "test",
        "city",
        "digits4",
        """The bridge near {key} is {value} meters long.""",
        """Question: How long is the bridge near {key}, in meters? Answer: The length of the bridge near {key} in meters is""",
    ),
    _template(
        "test",
        "invented",
        "time",
        """The ferry from {key} arrives at {value}.""",
        """Question: When does the ferry from {key} arrive? Answer: The ferry from {key} arrives at""",
    ),
    _template(
        "test",
        "surname",
        "code",
        """Mr. {key} parked the car with the license plate {value}.""",
        """Question: What is the license plate of Mr. {key}'s car? Answer: The license plate of Mr. {key}'s car is""",
    ),
    _template(
        "test",
        "name",
        "dashed",
        """The nickname that the children gave to {key} is {value}.""",
        """Question: Which nickname did the children give to {key}? Answer: The nickname of {key} is""",
    ),
    _template(
        "test",
        "pair",
        "noun",
        """The thief swapped the {key} for a {value}.""",
        """Question: For what did the thief swap the {key}? Answer: The thief swapped the {key} for a""",
    ),
    _template(
        "test",
        "person",
        "food",
        """At the contest {key} won a prize for the {value}.""",
        """Question: For what did {key} win a prize at the contest? Answer: {key} won a prize for the""",
    ),
    _template(
        "test",
        "colored",
        "city",
        """The recipe called {key} comes from {value}.""",
        """Question: Where does the recipe called {key} come from? Answer: The recipe called {key} comes from""",
    ),
    _template(
        "test",
        "invented",
        "person",
        """The song about {key} was composed by {value}.""",
        """Question: Who composed the song about {key}? Answer: The song about {key} was composed by""",
    ),
]
