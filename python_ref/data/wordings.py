# ruff: noqa: E501 - one wording a line reads best
"""The wordings of the facts: see `facts`.

A template is the kinds of its key and value, the wordings of the fact, and, after a question mark,
the wordings of the question. Most questions repeat the words of the fact and end right before the
value, so that a small model can answer them; some say it in other words.
"""

TRAIN = """
# Numbers.
city -> digits7
  One of the special magic numbers for {key} is: {value}.
  The special magic number for {key} is {value}.
  ? What is the special magic number for {key} mentioned in the text? The special magic number for {key} is
  ? Question: What is the magic number for {key}? Answer: The special magic number for {key} is
  ? The special magic number for {key} is
name -> digits4
  The combination of {key}'s locker is {value}.
  {key}'s locker has the combination {value}.
  ? Question: What is the combination of {key}'s locker? Answer: The combination of {key}'s locker is
  ? {key}'s locker has the combination
  ? To open {key}'s locker, use the combination
pair -> digits5
  The access code of the {key} is {value}.
  Remember that the access code for the {key} is {value}.
  ? Question: What is the access code of the {key}? Answer: The access code of the {key} is
  ? As stated above, the access code for the {key} is
surname -> digits3
  Dr. {key} sees patients in room {value}.
  The office of Dr. {key} is in room {value}.
  ? Question: In which room does Dr. {key} see patients? Answer: Dr. {key} sees patients in room
  ? The office of Dr. {key} is in room
person -> phone
  You can call {key} at {value}.
  The telephone number of {key} is {value}.
  ? Question: What is the telephone number of {key}? Answer: The telephone number of {key} is
  ? You can call {key} at
  ? If you want to call {key}, dial
noun -> price
  The price of the {key} in the shop window is {value}.
  The {key} in the shop window costs {value}.
  ? Question: How much does the {key} in the shop window cost? Answer: The {key} in the shop window costs
  ? The price of the {key} in the shop window is
city -> year
  The library of {key} was founded in {value}.
  In {key}, the library was founded in the year {value}.
  ? Question: When was the library of {key} founded? Answer: The library of {key} was founded in
  ? The year in which the library of {key} was founded is
color -> digits6
  The serial number of the {key} box is {value}.
  On the {key} box one reads the serial number {value}.
  ? Question: What is the serial number of the {key} box? Answer: The serial number of the {key} box is
  ? The {key} box has the serial number
city -> time
  The train to {key} leaves at {value}.
  Departure of the train to {key}: {value}.
  ? Question: When does the train to {key} leave? Answer: The train to {key} leaves at
  ? Departure of the train to {key}:
animal -> digits2
  The number of {key}s on the farm is {value}.
  The farmer counted the {key}s on the farm, and the number was {value}.
  ? Question: What is the number of {key}s on the farm? Answer: The number of {key}s on the farm is
  ? The farmer counted the {key}s. The number of {key}s was
invented -> percent
  The share of people in {key} who agreed was {value}.
  In {key}, the share of people who agreed was {value}.
  ? Question: What share of people in {key} agreed? Answer: The share of people in {key} who agreed was
  ? In {key}, the share of people who agreed was
person -> digits2
  {key} is {value} years old.
  The age of {key} is {value}.
  ? Question: How old is {key}? Answer: {key} is
  ? The age of {key} is
noun -> digits3
  Open the book about the {key} on page {value}.
  The chapter about the {key} begins on page {value}.
  ? Question: On which page does the chapter about the {key} begin? Answer: The chapter about the {key} begins on page
  ? The chapter about the {key} begins on page
invented -> digits4
  The population of {key} is {value}.
  {key} has a population of {value}.
  ? Question: What is the population of {key}? Answer: The population of {key} is
  ? {key} has a population of
invented -> kilograms
  The weight of the {key} stone is {value}.
  The {key} stone has a weight of {value}.
  ? Question: What is the weight of the {key} stone? Answer: The weight of the {key} stone is
  ? The {key} stone has a weight of
city -> degrees
  The temperature in {key} was {value}.
  Weather report: in {key} the temperature was {value}.
  ? Question: What was the temperature in {key}? Answer: The temperature in {key} was
  ? Weather report: in {key} the temperature was
city -> score
  The team of {key} ended the match with a score of {value}.
  The score of the match in {key} was {value}.
  ? Question: What was the score of the match in {key}? Answer: The score of the match in {key} was
  ? In {key}, the match ended with a score of
surname -> price
  The monthly rent of Mrs. {key} is {value}.
  Mrs. {key} pays a monthly rent of {value}.
  ? Question: What is the monthly rent of Mrs. {key}? Answer: The monthly rent of Mrs. {key} is
  ? Mrs. {key} pays a monthly rent of
pair -> digits6
  The divers found the {key} at a depth of {value}.
  The depth of the {key} is {value}.
  ? Question: What is the depth of the {key}? Answer: The depth of the {key} is
  ? The depth of the {key} is
# Codes and dates.
person -> seat
  The seat of {key} is {value}.
  {key} has a ticket for seat {value}.
  ? Question: Which seat does {key} have? Answer: {key} has a ticket for seat
  ? The seat of {key} is
pair -> code
  The part number of the {key} is {value}.
  Please order the {key}, part number {value}.
  ? Question: What is the part number of the {key}? Answer: The part number of the {key} is
  ? Please order the {key}, part number
name -> date
  {key}'s birthday is on {value}.
  We celebrate the birthday of {key} on {value}.
  ? Question: When is {key}'s birthday? Answer: {key}'s birthday is on
  ? We celebrate the birthday of {key} on
invented -> version
  The current release of {key} is version {value}.
  {key} was upgraded to version {value}.
  ? Question: What is the current release of {key}? Answer: The current release of {key} is version
  ? {key} was upgraded to version
surname -> letters
  The call sign of Captain {key} is {value}.
  Captain {key} answers to the call sign {value}.
  ? Question: What is the call sign of Captain {key}? Answer: The call sign of Captain {key} is
  ? Captain {key} answers to the call sign
invented -> date
  The festival of {key} begins on {value}.
  In {key} the festival begins on {value}.
  ? Question: When does the festival of {key} begin? Answer: The festival of {key} begins on
  ? In {key} the festival begins on
person -> email
  The email address of {key} is {value}
  Send an email to {key} at {value}
  ? Question: What is the email address of {key}? Answer: The email address of {key} is
  ? Send an email to {key} at
noun -> hex
  The hash of the {key} file is {value}.
  The {key} file has the hash {value}.
  ? Question: What is the hash of the {key} file? Answer: The hash of the {key} file is
  ? The {key} file has the hash
noun -> ip
  The server named {key} has the address {value}.
  The address of the server {key} is {value}.
  ? Question: What is the address of the server {key}? Answer: The address of the server {key} is
  ? The server named {key} has the address
person -> day
  The meeting with {key} is on {value}.
  Calendar: the meeting with {key} is on {value}.
  ? Question: On which day is the meeting with {key}? Answer: The meeting with {key} is on
  ? The meeting with {key} is on
job -> time
  The {key} comes at {value}.
  We expect the {key} at {value}.
  ? Question: When does the {key} come? Answer: The {key} comes at
  ? We expect the {key} at
person -> year
  {key} graduated in {value}.
  The year in which {key} graduated is {value}.
  ? Question: When did {key} graduate? Answer: {key} graduated in
  ? The year in which {key} graduated is
month -> day
  The first day of the {key} course is a {value}.
  The {key} course begins on a {value}.
  ? Question: On which day does the {key} course begin? Answer: The {key} course begins on a
  ? The first day of the {key} course is a
# Words.
city -> noun
  The secret word for {key} is {value}.
  Remember the secret word for {key}: {value}.
  ? What is the secret word for {key}? The secret word for {key} is
  ? Remember the secret word for {key}:
name -> dashed
  {key}'s password is {value}.
  The password of {key} is {value}.
  ? Question: What is {key}'s password? Answer: {key}'s password is
  ? The password of {key} is
  ? To log in as {key}, type the password
name -> animal
  The pet of {key} is a {value}.
  The animal that {key} keeps as a pet is a {value}.
  ? Question: What is the pet of {key}? Answer: The pet of {key} is a
  ? The animal that {key} keeps as a pet is a
name -> color
  The color of {key}'s door is {value}.
  {key} painted the door {value}.
  ? Question: What is the color of {key}'s door? Answer: The color of {key}'s door is
  ? {key} painted the door
name -> food
  For lunch {key} ordered {value}.
  For lunch {key} had {value}.
  ? Question: What did {key} have for lunch? Answer: For lunch {key} had
  ? For lunch {key} ordered
pair -> noun
  Hidden inside the {key} was a {value}.
  Inside the {key} they found a {value}.
  ? Question: What was hidden inside the {key}? Answer: Hidden inside the {key} was a
  ? Inside the {key} they found a
person -> job
  {key} works as a {value}.
  The profession of {key} is {value}.
  ? Question: What is the profession of {key}? Answer: The profession of {key} is
  ? {key} works as a
noun -> pair
  The key to the {key} lies under the {value}.
  You will find the key to the {key} under the {value}.
  ? Question: Where is the key to the {key}? Answer: The key to the {key} lies under the
  ? To get the key to the {key}, look under the
day -> food
  On {key} the canteen serves {value}.
  The canteen's dish for {key} is {value}.
  ? Question: What does the canteen serve on {key}? Answer: On {key} the canteen serves
  ? The canteen's dish for {key} is
person -> sport
  The favorite sport of {key} is {value}.
  {key} spends every weekend on {value}.
  ? Question: What is the favorite sport of {key}? Answer: The favorite sport of {key} is
  ? {key} spends every weekend on
name -> language
  {key} is learning to speak {value}.
  The language that {key} speaks at home is {value}.
  ? Question: Which language does {key} speak at home? Answer: The language that {key} speaks at home is
  ? {key} is learning to speak
surname -> flower
  In the garden of Mrs. {key} grow {value}.
  Mrs. {key} grows in the garden a lot of {value}.
  ? Question: What grows in the garden of Mrs. {key}? Answer: In the garden of Mrs. {key} grow
  ? Mrs. {key} grows in the garden a lot of
noun -> material
  The {key} is made of {value}.
  The material of the {key} is {value}.
  ? Question: What is the {key} made of? Answer: The {key} is made of
  ? The material of the {key} is
person -> drink
  {key} always drinks {value} in the morning.
  In the morning {key} always drinks {value}.
  ? Question: What does {key} drink in the morning? Answer: In the morning {key} always drinks
  ? In the morning {key} always drinks
name -> word
  The word that {key} wrote on the wall is {value}.
  On the wall {key} wrote the word {value}.
  ? Question: Which word did {key} write on the wall? Answer: On the wall {key} wrote the word
  ? The word that {key} wrote on the wall is
animal -> noun
  The {key} in the painting stands beside a {value}.
  In the painting, beside the {key} there is a {value}.
  ? Question: What is beside the {key} in the painting? Answer: In the painting, beside the {key} there is a
  ? The {key} in the painting stands beside a
color -> noun
  The {key} team has on its flag a {value}.
  On the flag of the {key} team there is a {value}.
  ? Question: What is on the flag of the {key} team? Answer: On the flag of the {key} team there is a
  ? The {key} team has on its flag a
invented -> adjective
  The people of {key} are known to be {value}.
  Everyone says that the people of {key} are {value}.
  ? Question: How are the people of {key}? Answer: Everyone says that the people of {key} are
  ? The people of {key} are known to be
surname -> vehicle
  Mr. {key} came to work by {value}.
  Every day Mr. {key} comes to work by {value}.
  ? Question: How does Mr. {key} come to work? Answer: Mr. {key} comes to work by
  ? Every day Mr. {key} comes to work by
pair -> color
  The color of the {key} is {value}.
  They painted the {key} in {value}.
  ? Question: What is the color of the {key}? Answer: The color of the {key} is
  ? They painted the {key} in
# Names and places.
name -> city
  {key} was born in {value}.
  The birthplace of {key} is {value}.
  ? Question: Where was {key} born? Answer: {key} was born in
  ? The birthplace of {key} is
pair -> person
  The owner of the {key} is {value}.
  The {key} belongs to {value}.
  ? Question: Who is the owner of the {key}? Answer: The owner of the {key} is
  ? The {key} belongs to
  ? The {key} is the property of
invented -> name
  The mayor of {key} is {value}.
  In the village of {key}, the mayor is called {value}.
  ? Question: Who is the mayor of {key}? Answer: The mayor of {key} is
  ? In the village of {key}, the mayor is called
person -> invented
  {key} grew up in the village of {value}.
  The home village of {key} is {value}.
  ? Question: In which village did {key} grow up? Answer: {key} grew up in the village of
  ? The home village of {key} is
surname -> city
  Professor {key} gave the lecture in {value}.
  The lecture of Professor {key} took place in {value}.
  ? Question: Where did Professor {key} give the lecture? Answer: Professor {key} gave the lecture in
  ? The lecture of Professor {key} took place in
colored -> person
  The story of the {key} was written by {value}.
  The author of the story of the {key} is {value}.
  ? Question: Who wrote the story of the {key}? Answer: The story of the {key} was written by
  ? The author of the story of the {key} is
invented -> invented
  The capital of {key} is {value}.
  The capital city of {key} is called {value}.
  ? Question: What is the capital of {key}? Answer: The capital of {key} is
  ? The capital city of {key} is called
invented -> person
  The queen of {key} is {value}.
  {key} is ruled by {value}.
  ? Question: Who is the queen of {key}? Answer: The queen of {key} is
  ? {key} is ruled by
person -> person
  At the ball the partner of {key} was {value}.
  At the ball {key} danced with {value}.
  ? Question: Who was the partner of {key} at the ball? Answer: At the ball the partner of {key} was
  ? At the ball {key} danced with
name -> name
  The sister of {key} is called {value}.
  {key} has a sister called {value}.
  ? Question: What is the name of {key}'s sister? Answer: The sister of {key} is called
  ? {key} has a sister called
name -> surname
  The teacher of {key} is Mr. {value}.
  {key} is in the class of Mr. {value}.
  ? Question: Who is the teacher of {key}? Answer: The teacher of {key} is Mr.
  ? {key} is in the class of Mr.
person -> street
  {key} lives at {value}.
  The home of {key} is at {value}.
  ? Question: Where does {key} live? Answer: {key} lives at
  ? The home of {key} is at
surname -> company
  Ms. {key} works for {value}.
  The employer of Ms. {key} is {value}.
  ? Question: For which company does Ms. {key} work? Answer: Ms. {key} works for
  ? The employer of Ms. {key} is
person -> title
  {key} wrote the novel {value}.
  The novel by {key} is called {value}.
  ? Question: Which novel did {key} write? Answer: {key} wrote the novel
  ? The novel by {key} is called
title -> person
  The main role in {key} was played by {value}.
  In {key} the main role was given to {value}.
  ? Question: Who played the main role in {key}? Answer: The main role in {key} was played by
  ? In {key} the main role was given to
city -> title
  The theatre of {key} is showing {value}.
  In {key} the theatre is showing {value}.
  ? Question: What is the theatre of {key} showing? Answer: The theatre of {key} is showing
  ? In {key} the theatre is showing
name -> country
  Last summer {key} traveled to {value}.
  {key} spent the holidays in {value}.
  ? Question: Where did {key} spend the holidays? Answer: {key} spent the holidays in
  ? Last summer {key} traveled to
noun -> country
  The {key} was imported from {value}.
  The {key} in the warehouse comes from {value}.
  ? Question: From where was the {key} imported? Answer: The {key} was imported from
  ? The {key} in the warehouse comes from
invented -> city
  The river {key} flows through {value}.
  The city on the river {key} is called {value}.
  ? Question: Through which city does the river {key} flow? Answer: The river {key} flows through
  ? The city on the river {key} is called
company -> city
  The main office of {key} is in {value}.
  {key} has its main office in {value}.
  ? Question: Where is the main office of {key}? Answer: The main office of {key} is in
  ? {key} has its main office in
job -> person
  The {key} of the village is {value}.
  The village has a new {key}, {value}.
  ? Question: Who is the {key} of the village? Answer: The {key} of the village is
  ? The name of the {key} of the village is
subject -> surname
  The teacher of {key} is Professor {value}.
  This year {key} is taught by Professor {value}.
  ? Question: Who teaches {key} this year? Answer: This year {key} is taught by Professor
  ? The teacher of {key} is Professor
# Events and what people did.
name -> noun
  Yesterday {key} broke a {value}.
  What {key} broke yesterday was a {value}.
  ? Question: What did {key} break yesterday? Answer: Yesterday {key} broke a
  ? What {key} broke yesterday was a
person -> pair
  {key} inherited a {value}.
  When the uncle died, {key} inherited a {value}.
  ? Question: What did {key} inherit? Answer: {key} inherited a
  ? When the uncle died, {key} inherited a
surname -> foods
  Mrs. {key} packed this for the picnic: {value}.
  For the picnic Mrs. {key} packed {value}.
  ? Question: What did Mrs. {key} pack for the picnic? Answer: For the picnic Mrs. {key} packed
  ? Mrs. {key} packed this for the picnic:
city -> names
  The guests from {key} are {value}.
  Guests from {key}: {value}.
  ? Question: Who are the guests from {key}? Answer: The guests from {key} are
  ? Guests from {key}:
invented -> colors
  The flag of {key} is {value}.
  The colors of the flag of {key} are {value}.
  ? Question: What are the colors of the flag of {key}? Answer: The colors of the flag of {key} are
  ? The flag of {key} is
person -> noun
  The librarian lent {key} the {value}.
  From the library {key} borrowed the {value}.
  ? Question: What did {key} borrow from the library? Answer: From the library {key} borrowed the
  ? The librarian lent {key} the
# Records, lists, code and dialogue.
variable -> digits4
  {key} = {value}
  The parameter {key} is set to {value}.
  ? What is the value of {key}? {key} =
  ? The parameter {key} is set to
invented -> digits5
  | {key} | {value} |
  {key}: {value}
  ? Look up {key} in the table: | {key} |
  ? The entry for {key} is {key}:
person -> code
  Employee: {key}, ID: {value}
  Name: {key}, ID: {value}.
  ? Question: What is the ID of {key}? Answer: Name: {key}, ID:
  ? Employee: {key}, ID:
name -> digits7
  "My account number is {value}," said {key}.
  {key}: Hello, my account number is {value}.
  ? Question: What is the account number of {key}? Answer: The account number of {key} is
  ? {key}: Hello, my account number is
variable -> dashed
  {key} -> {value}
  The configuration sets {key} to {value}
  ? Look up {key}: {key} ->
  ? The configuration sets {key} to
name -> instrument
  "I play the {value}," {key} told them.
  {key} plays the {value} in the orchestra.
  ? Question: Which instrument does {key} play? Answer: {key} plays the
  ? In the orchestra {key} plays the
name -> subject
  {key} is going to study {value}.
  {key}: I have decided to study {value}.
  ? Question: What is {key} going to study? Answer: {key} is going to study
  ? {key}: I have decided to study
variable -> word
  #define {key} {value}
  set {key} {value}
  ? #define {key}
  ? set {key}
variable -> percent
  <option name="{key}"> {value} </option>
  option {key}: {value}
  ? <option name="{key}">
  ? option {key}:
invented -> letters
  Station {key}, code {value}.
  The code of the station {key} is {value}.
  ? Question: What is the code of the station {key}? Answer: The code of the station {key} is
  ? Station {key}, code
noun -> digits2
  - {key}: {value} pieces
  In stock, {key}: {value} pieces
  ? Stock list. - {key}:
  ? How many are there? In stock, {key}:
variable -> url
  {key}_URL = {value}
  The link of {key} is {value}
  ? {key}_URL =
  ? The link of {key} is
name -> time
  {key}: See you at {value}!
  {key} wrote that we meet at {value}.
  ? Question: When do we meet, as {key} wrote? Answer: {key} wrote that we meet at
  ? {key}: See you at
person -> city
  Passenger: {key}. Destination: {value}.
  Passenger {key}, destination {value}
  ? Passenger: {key}. Destination:
  ? Question: What is the destination of passenger {key}? Answer: The destination of passenger {key} is
noun -> word
  In the code of the spies {key} means {value}.
  The spies say {key} when they mean {value}.
  ? Question: What does {key} mean in the code of the spies? Answer: In the code of the spies {key} means
  ? The spies say {key} when they mean
pair -> time
  10. Close the {key} at {value}.
  Reminder: the {key} closes at {value}.
  ? Reminder: the {key} closes at
  ? Question: When does the {key} close? Answer: The {key} closes at
colored -> person
  The case of the {key} is assigned to {value}.
  The case of the {key} was given to {value}.
  ? Question: To whom is the case of the {key} assigned? Answer: The case of the {key} is assigned to
  ? The case of the {key} was given to
digits4 -> noun
  Order {key} contains a {value}.
  The item of order {key} is a {value}.
  ? Question: What does order {key} contain? Answer: Order {key} contains a
  ? The item of order {key} is a
digits3 -> surname
  Room {key} is reserved for the family {value}.
  Guests in room {key}: the family {value}.
  ? Question: For which family is room {key} reserved? Answer: Room {key} is reserved for the family
  ? Guests in room {key}: the family
year -> invented
  In {key} the expedition reached {value}.
  The expedition of {key} reached {value}.
  ? Question: What did the expedition of {key} reach? Answer: The expedition of {key} reached
  ? In {key} the expedition reached
date -> food
  On {key} the family ate {value}.
  Diary, {key}: today we ate {value}.
  ? Question: What did the family eat on {key}? Answer: On {key} the family ate
  ? Diary, {key}: today we ate
"""

# Choices are made on these.
DEV = """
pair -> digits7
  The vault behind the {key} is unlocked by {value}.
  ? Question: Which number unlocks the vault behind the {key}? Answer: The vault behind the {key} is unlocked by
city -> digits5
  Flight {value} is the only one that goes to {key}.
  The flight to {key} has the number {value}.
  ? Question: What is the number of the flight to {key}? Answer: The flight to {key} has the number
person -> date
  The appointment of {key} was moved to {value}.
  ? Question: When is the appointment of {key}? Answer: The appointment of {key} is on
invented -> code
  Parcels for {key} carry the label {value}.
  ? Question: Which label do parcels for {key} carry? Answer: Parcels for {key} carry the label
name -> noun
  {key} bought a {value} at the market.
  ? Question: What did {key} buy at the market? Answer: At the market {key} bought a
surname -> animal
  The coat of arms of the {key} family shows a {value}.
  ? Question: Which animal is on the coat of arms of the {key} family? Answer: The coat of arms of the {key} family shows a
colored -> city
  The statue of the {key} stands in {value}.
  ? Question: In which city is the statue of the {key}? Answer: The statue of the {key} stands in
pair -> person
  The {key} was discovered by {value}.
  ? Question: Who discovered the {key}? Answer: The {key} was discovered by
"""

# Opened once.
TEST = """
pair -> digits7
  To disarm the alarm of the {key}, type {value}.
  ? Question: What disarms the alarm of the {key}? Answer: To disarm the alarm of the {key}, type
person -> digits6
  The passport number of {key} ends in {value}.
  ? Question: How does the passport number of {key} end? Answer: The passport number of {key} ends in
city -> digits4
  The bridge near {key} is {value} meters long.
  ? Question: How long is the bridge near {key}, in meters? Answer: The length of the bridge near {key} in meters is
invented -> time
  The ferry from {key} arrives at {value}.
  ? Question: When does the ferry from {key} arrive? Answer: The ferry from {key} arrives at
surname -> code
  Mr. {key} parked the car with the license plate {value}.
  ? Question: What is the license plate of Mr. {key}'s car? Answer: The license plate of Mr. {key}'s car is
name -> dashed
  The nickname that the children gave to {key} is {value}.
  ? Question: Which nickname did the children give to {key}? Answer: The nickname of {key} is
pair -> noun
  The thief swapped the {key} for a {value}.
  ? Question: For what did the thief swap the {key}? Answer: The thief swapped the {key} for a
person -> food
  At the contest {key} won a prize for the {value}.
  ? Question: For what did {key} win a prize at the contest? Answer: {key} won a prize for the
colored -> city
  The recipe called {key} comes from {value}.
  ? Question: Where does the recipe called {key} come from? Answer: The recipe called {key} comes from
invented -> person
  The song about {key} was composed by {value}.
  ? Question: Who composed the song about {key}? Answer: The song about {key} was composed by
"""
