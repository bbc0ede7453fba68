"""Sentences from a made-up island observatory: endless, all different, and the same for the same generator.

About 24 tokens a sentence with the tokeniser of SmolLM2. Numbers are frequent on purpose, since they keep two
prompts from sharing more than their template.
"""

from __future__ import annotations

from random import Random

_PEOPLE = (
    "Amara Benedikt Ciara Dmitri Elif Fumiko Goran Hedda Idris Jovana Kasper Leila Mateus Noor Oskar Priya Ruben "
    "Saskia Tomas Ulrike Vesna Wim Yara Zeno"
).split()
_INSTRUMENTS = (
    "barometer|seismometer|tide gauge|rain gauge|solar telescope|radio dish|wind vane|weather balloon|sea buoy|"
    "spectrograph|magnetometer|echo sounder|star tracker|thermograph|dew sensor|cloud camera|ice core drill"
).split("|")
_ROOMS = (
    "north dome|boat shed|battery room|map library|lower terrace|kitchen annex|chart room|generator hut|west mast|"
    "cold store|signal tower|pump house|reading room|old cistern"
).split("|")
_STATES = "steady|erratic|foggy|iced over|damp|sluggish|blurred|frozen|unusually high|too low|silent".split("|")
_REMEDIES = (
    "recalibrated|wiped dry|wrapped in foil|moved indoors|greased|rewired|switched off|compared with the spare one|"
    "photographed|left alone"
).split("|")
_HOURS = (
    "before dawn|at first light|around noon|after the ferry left|towards midnight|during the squall|at low water|"
    "in the second watch|while the fog lifted|when the lamps came on"
).split("|")
_REQUESTS = (
    "What should the next watch check first?",
    "Write two lines for the log book.",
    "Explain the likeliest cause to a visitor.",
    "Draft a radio message to the mainland.",
    "Which of these readings can be trusted?",
    "Propose a repair with the tools on the island.",
    "Tell the story from the point of view of the keeper.",
    "Name what is missing in this note.",
)

LABELS = ("weather", "instrument", "visitor", "supply", "sea")


def request(random: Random) -> str:
    """Returns what the writer of a note wants."""
    return random.choice(_REQUESTS)


def sentence(random: Random) -> str:
    """Returns one sentence of a log."""
    who, other = random.sample(_PEOPLE, 2)
    what, spare = random.sample(_INSTRUMENTS, 2)
    where, when = random.choice(_ROOMS), random.choice(_HOURS)
    state, remedy = random.choice(_STATES), random.choice(_REMEDIES)
    number, small = random.randint(100, 9_999), random.randint(2, 60)
    forms = (
        f"{who} read {number} off the {what} in the {where} {when}, and called it {state}.",
        f"By {small} past the hour the {what} had turned {state}, so {other} had it {remedy}.",
        f"Entry {number}: the {what} near the {where} was {remedy} {when} by {who} and {other}.",
        f"{when.capitalize()}, {other} carried the {spare} from the {where} to the {what}, {small} steps uphill.",
        f"The {spare} disagreed with the {what} by {small} units, although {who} had seen both {remedy}.",
        f"{who} insists that nobody entered the {where} {when}, yet the {what} was found {state}.",
        f"After {small} hours without a break the {what} drew {number} watts and stayed {state}.",
    )
    return random.choice(forms)


def note(random: Random, label: str) -> str:
    """Returns one short message that belongs under `label`, one of `LABELS`."""
    who, what = random.choice(_PEOPLE), random.choice(_INSTRUMENTS)
    where, number = random.choice(_ROOMS), random.randint(11, 989)
    return {
        "weather": f"Hail of {number} grams a stone fell on the {where} tonight.",
        "instrument": f"The {what} in the {where} shows {number} whatever we do.",
        "visitor": f"{who} asks for beds for {number} guests, near the {where} if possible.",
        "supply": f"Crate {number} holds no cable, and the {where} is out of lamp oil.",
        "sea": f"A swell of {number} centimetres broke over the steps by the {where}.",
    }[label]
