"""Write the bundled sample: a small textual-entailment set of our own, in GLUE RTE's format.

    python sample_data/make_sample.py     # sample_data/RTE/*.tsv and common/models/tiny_vocab.txt

The bytes are the same on every run and every Python. A premise states one or more facts, between
idle sentences; the hypothesis restates one of them, and does not follow if a detail was changed.
"""

import re
import string
from collections import Counter
from itertools import combinations
from pathlib import Path
from random import Random

HERE = Path(__file__).parent
SEED = 2
ROWS = {"train": 2490, "dev": 277}  # as many as the real RTE has
SHORTEST, LONGEST = 8, 60  # words in a premise
BORROWED = 0.2  # fraction of changed details taken from another fact of the premise, if it has one
TOKENS = 2000  # in the vocabulary
SLOT = r"{(\w+)}"
Pools = dict[str, list[str]]
Row = tuple[str, str, str]  # premise, hypothesis, label

# What a slot may hold. "a/b=c": the premise has a or b, the hypothesis c.
POOLS = {
    "first": "Adam Alice Boris Carla Clara David Diana Edwin Elena Felix Frida George Greta Henry "
    "Irene Ivan Julia Karl Laura Leo Maria Nora Oscar Paula Rosa Simon Tina Victor",
    "last": "Archer Baxter Bell Brandt Carter Castro Dawson Fisher Foster Garcia Hansen Holm Ito "
    "Keller Kovacs Lindt Lopez Marsh Meyer Novak Okafor Patel Reed Rossi Silva Stone Tanaka Weber",
    "city": "Athens Berlin Boston Cairo Chicago Denver Dublin Geneva Havana Helsinki Lima Lisbon "
    "London Madrid Milan Moscow Nairobi Oslo Paris Prague Rome Seoul Sydney Tokyo Vienna Warsaw",
    "country": "Brazil Canada Chile Denmark Egypt France Germany Greece India Ireland Italy Japan "
    "Kenya Mexico Norway Peru Poland Portugal Spain Sweden",
    "company": "Altavane Brightwell Corvane Dunmore Eastport Fernhill Glenmark Harcourt Ironbridge "
    "Kestrel Lakeland Merrow Northgate Oakridge Pinecrest Quantor Redfield Silverline Westbrook",
    "team": "Badgers Comets Dragons Eagles Falcons Hornets Lions Pirates Ravens Sharks Wolves",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "month": "January February March April June July August September October November December",
    "year": "1923 1928 1931 1935 1938 1942 1947 1951 1953 1958 1961 1964 1969 1972 1976 1980 1984",
    "number": "21 23 24 25 27 28 31 32 34 36 38 42 43 45 46 48 51 52 54 57 59 61 62 64",
    "color": "black blue brown golden green grey pink purple red silver white yellow",
    "vehicle": "bicycle boat bus car motorcycle tractor truck van",
    "animal": "bear camel crocodile giraffe leopard lion monkey panda penguin tiger wolf zebra",
    "instrument": "cello clarinet flute guitar harp piano trumpet violin",
    "subject": "biology chemistry drawing geography history mathematics music physics",
    "job": "baker banker carpenter dentist farmer lawyer nurse painter pilot plumber tailor",
    "office": "chairman director president secretary treasurer",
    "building": "bakery church cinema factory hospital hotel library school stadium theatre",
    "topic": "birds clocks dinosaurs gardens islands mountains ships trains volcanoes",
    "relative": "aunt brother cousin daughter father mother sister son uncle",
    "food": "bread butter cheese coffee fish honey rice salt sugar tea wine",
    "place": "first second third fourth fifth sixth",
    "move": "rose/climbed/jumped/soared=went_up fell/dropped/slid/sank=went_down",
    "vote": "approved/backed/accepted=supported rejected/blocked/refused=opposed",
    "review": "praised/admired/loved=liked panned/mocked/hated=disliked",
    "result": "won=a_victory lost=a_defeat",
}

# Three lines per fact: two ways to state it in a premise, and the hypotheses that may restate it.
FACTS = """\
{person} moved to {city} in {month}.
In {month}, {person} packed everything and moved to {city}.
{person} moved to {city}. / {person} moved in {month}.
{person}, a {job}, was born in {city} in {year}.
{person}, who was born in {city} in {year}, became a {job} like many others there.
{person} was born in {city}. / {person} was born in {year}. / {person} was a {job}.
{person} bought a {color} {vehicle} on {day}.
On {day} {person} went to a dealer and bought a {color} {vehicle}.
{person} bought a {vehicle} on {day}. / {person} bought a {color} {vehicle}.
A museum in {city} opened a show about {topic} on {day}.
On {day} visitors were the first to see a show about {topic} at a museum in {city}.
The museum in {city} has a show about {topic}. / The show about {topic} opened on {day}.
Shares of {company} {move} by {number} percent on {day}.
On {day} shares of {company}, long watched by traders, {move} by {number} percent.
Shares of {company} {move}. / Shares of {company} {move} on {day}.
{company} named {person} as its new {office}.
After a long search, {company} named {person} as its new {office}.
{person} is the new {office} of {company}. / {company} named a new {office}.
The council of {city} {vote} a plan to build a new {building}.
After a long debate, the council of {city} {vote} a plan to build a new {building}.
The council of {city} {vote} the plan. / The council of {city} {vote} a new {building}.
{person} plays the {instrument} in an orchestra in {city}.
For some years {person} has played the {instrument} in an orchestra in {city}.
{person} plays the {instrument}. / {person} plays in an orchestra in {city}.
The {team} {result} their match in {city} on {day}.
In front of a full house in {city}, the {team} {result} their match on {day}.
The match was {result} for the {team}. / The {team} had a match in {city} on {day}.
A storm hit {city} on {day} and left {number} homes without power.
Strong winds reached {city} on {day}, and the storm left {number} homes without power.
The storm left {number} homes without power. / The storm reached {city}. / The storm came on {day}.
{person} won a prize for a book about {topic} in {year}.
In {year} a book about {topic} won a prize for its author, {person}.
{person} won a prize for a book about {topic}. / {person} won a prize in {year}.
The zoo in {city} has a new {animal}, which came from {country}.
A {animal} from {country} has found a new home at the zoo in {city}.
The zoo in {city} has a new {animal}. / The new {animal} is from {country}.
The old bridge near {city} was painted {color} in {year}.
Workers painted the old bridge near {city} {color} in {year}.
The bridge near {city} was painted {color}. / The bridge near {city} was painted in {year}.
{person} teaches {subject} at a school in {country}.
At a small school in {country}, children learn {subject} from {person}.
{person} teaches {subject}. / {person} works at a school in {country}.
A shop in {city} sells {food} from {country}.
Customers come from far away to a shop in {city} that sells {food} from {country}.
The shop in {city} sells {food}. / The {food} in the shop is from {country}.
{company} will open a {building} in {city} in {month}.
Plans of {company} for {city} include a {building}, which will open in {month}.
{company} will open a {building}. / The {building} will open in {month}.
A fire in a {building} was put out by {number} firefighters on {day}.
It took {number} firefighters to put out a fire in a {building} on {day}.
The fire was in a {building}. / The fire was put out on {day}. / {number} firefighters came.
{person} came {place} in a race in {city}.
Of all the runners who finished a race in {city}, {person} came {place}.
{person} came {place} in a race. / {person} finished a race in {city}.
{person}, the foreign minister of {country}, visited {city} in {month}.
The foreign minister of {country}, {person}, was in {city} for a week in {month}.
{person} was in {city} in {month}. / The minister of {country} was in {city}.
The {relative} of {person} runs a {building} in {city}.
In {city} there is a {building} that the {relative} of {person} runs.
The {relative} of {person} runs a {building}. / The {building} the {relative} runs is in {city}.
Critics {review} the new film by {person}, which is set in {country}.
Set in {country}, the new film by {person} was widely shown, and critics {review} it.
Critics {review} the film by {person}. / The film by {person} is set in {country}.
{person}, aged {number}, works as a {job} in {country}.
A {job} in {country} since leaving school, {person} is now {number} years old.
{person} is a {job}. / {person} is a {job} in {country}. / {person} is {number} years old.
"""

IDLE = """\
The news spread quickly.
Nobody was surprised to hear it.
Local papers wrote about it at length.
Few people had expected this so early in the season.
It was the talk of the neighbourhood for some time.
No further details were given to the press.
A spokesman said that more would be known soon, but he did not want to say when.
The weather was mild, and many people were out in the streets until late in the evening.
There were no complaints, although some neighbours said that it had been rather noisy.
Those who were there remember it well, and they still like to speak about it today.
"""

# Words beyond the sample, so that other text is not split into single letters.
COMMON = """
able above across against ago age air all almost along already also always am among any are area
around ask away back bank based be because been before began being best better between big billion
body both business but call called can case cause center central century charge child claim clear
close company control could country court crime dead deal death decided did die died do does down
during each east economic effect eight election end energy even event ever every fact family federal
fight final find five force former four free game gave general get give global go going good
government great group half have head health heart held help her here high him his how human if
important increase industry information into international island issue job just keep killed kind
know land large last law lead leader least less let level life line list little live lost low main
major make man market matter may me medical meet meeting member men military million money month
morning most much must my name nation national need never next night nine north not nothing nuclear
off oil once one only or order other our over own part party past pay peace per period play point
police policy political power press price prime prison problem process product program project
public question rate reach real reason recent region report research rest result right rise role
rule same saw security send sent service seven several she should side since site six social south
space special stand start state station stop story street study such support sure system take tax
team ten than them then these thing think this thought thousand three through together told too top
total town trade treatment trial two under union united university up us use very victim view war
water way we week west what where whether while whole why win with woman women word world yet you
"""


def pools() -> Pools:
    """Slot -> its entries; a person is any first name with any last name."""
    table = {slot: entries.split() for slot, entries in POOLS.items()}
    table["person"] = [f"{first}_{last}" for first in table["first"] for last in table["last"]]
    return table


def draw(rng: Random, entries: list[str], taken: set[str]) -> str:
    """An entry that has none of the words in `taken`."""
    while True:
        entry = rng.choice(entries)
        if taken.isdisjoint(entry.split("_")):
            return entry


def fill(rng: Random, template: str, values: dict[str, str], restated: bool = False) -> str:
    """The template with a word in each slot: a premise's, or the one that restates it."""

    def word(slot: re.Match) -> str:
        stated, _, other = values[slot[1]].partition("=")
        return (other if restated and other else rng.choice(stated.split("/"))).replace("_", " ")

    return re.sub(SLOT, word, template)


def story(rng: Random, table: Pools) -> tuple[str, list, set[str]]:
    """A premise, its facts as (hypotheses, slot -> entry), and the words of those entries."""
    length = min(rng.randint(SHORTEST, LONGEST) for _ in range(3))  # long premises are rare
    lines, idle = FACTS.splitlines(), IDLE.splitlines()
    fresh = list(zip(lines[::3], lines[1::3], lines[2::3], strict=True))
    rng.shuffle(fresh)
    rng.shuffle(idle)
    sentences, facts, taken = [], [], set()
    while len(" ".join(sentences).split()) < length:
        if facts and rng.random() < 0.4:
            sentences.append(idle.pop())
            continue
        first, second, hypotheses = fresh.pop()
        values = {}
        for slot in re.findall(SLOT, first):
            values[slot] = draw(rng, table[slot], taken)
            taken.update(values[slot].split("_"))
        sentences.append(fill(rng, rng.choice([first, second]), values))
        facts.append((hypotheses.split(" / "), values))
    rng.shuffle(sentences)
    return " ".join(sentences), facts, taken


def pair(rng: Random, table: Pools, entails: bool) -> tuple[str, str]:
    """(premise, hypothesis): the hypothesis restates the first fact, or changes a detail of it."""
    premise, ((hypotheses, values), *others), taken = story(rng, table)
    template = rng.choice(hypotheses)
    if not entails:
        slots = re.findall(SLOT, template)
        for slot in rng.sample(slots, rng.randint(1, len(slots))):
            elsewhere = [other[slot] for _, other in others if slot in other]
            borrow = elsewhere and rng.random() < BORROWED
            values[slot] = rng.choice(elsewhere) if borrow else draw(rng, table[slot], taken)
    return premise, fill(rng, template, values, restated=True)


def splits() -> dict[str, list[Row]]:
    """Split -> its rows (premise, hypothesis, label): half of each label, no premise twice."""
    rng, table, seen = Random(SEED), pools(), set()
    data: dict[str, list[Row]] = {split: [] for split in ROWS}
    for split, rows in data.items():
        while len(rows) < ROWS[split]:
            entails = len(rows) % 2 == 0
            premise, hypothesis = pair(rng, table, entails)
            if premise not in seen and len(premise.split()) <= LONGEST:
                seen.add(premise)
                rows.append((premise, hypothesis, "entailment" if entails else "not_entailment"))
        rng.shuffle(rows)
    return data


def tsv(rows: list[Row]) -> str:
    """The rows as the text of an RTE file."""
    lines = ["\t".join((str(index), *row)) for index, row in enumerate(rows)]
    return "\n".join(["index\tsentence1\tsentence2\tlabel", *lines, ""])


def vocabulary(text: str) -> str:
    """WordPiece tokens, one per line: special ones, characters, words, pieces of words."""
    words = sorted({*re.findall(r"\w+", text.lower()), *COMMON.split()})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    tokens += ["##" + character for character in string.digits + string.ascii_lowercase]
    tokens += [word for word in words if len(word) > 1]
    pieces = Counter()
    for word in words:
        for start, end in combinations(range(len(word) + 1), 2):
            if 2 <= end - start <= 5:
                pieces["##" * (start > 0) + word[start:end]] += end - start
    spare = sorted(pieces.keys() - set(tokens), key=lambda piece: (-pieces[piece], piece))
    return "\n".join(tokens + spare[: TOKENS - len(tokens)]) + "\n"


def files() -> dict[Path, str]:
    """Path -> text of the three files: the two of the sample and the tiny BERT's vocabulary."""
    data = splits()
    sentences = [sentence for rows in data.values() for row in rows for sentence in row[:2]]
    sample = {HERE / "RTE" / f"{split}.tsv": tsv(rows) for split, rows in data.items()}
    tiny_vocab = HERE.parent / "common" / "models" / "tiny_vocab.txt"
    return sample | {tiny_vocab: vocabulary(" ".join(sentences))}


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())
