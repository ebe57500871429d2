"""Generated exercises of five kinds, split into trained and held-out ones.

A question has exactly one right answer, so greedy text can be judged by comparison. The kinds differ in how
much of the answer a drafter can foresee (JSON repeats a frame; prose branches), which spreads the acceptance.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import Callable


def _words(text: str) -> list[str]:
    return text.split()


SERVICES = _words("gateway billing search catalog metrics ledger mailer auth cache router index queue")
HOSTS = _words("alpha bravo carbon delta ember falcon granite harbor iris jasper kilo lunar")
PEOPLE = _words("anna boris clara david emil fatima greta hugo")
DAYS = _words("monday tuesday wednesday thursday friday saturday sunday")
NOUNS = _words("orders prices weights scores lengths points errors hours")
VERBS = {
    "sum": "total = total + x",
    "count": "total = total + 1",
    "multiply": "total = total * x",
    "subtract": "total = total - x",
}
CONDITIONS = {
    "positive": "x > 0",
    "negative": "x < 0",
    "large": "x > 100",
    "even": "x % 2 == 0",
    "odd": "x % 2 == 1",
}
# The order inside a list is arbitrary on purpose: it has to be remembered, it cannot be derived.
LISTS = {
    "fruits": _words("mango plum cherry apple pear lemon grape peach banana orange papaya melon"),
    "animals": _words("koala badger otter hippo camel jaguar lizard eagle monkey dolphin ferret giraffe"),
    "metals": _words("zinc iron gold tin copper lead bismuth nickel silver cobalt platinum aluminium"),
    "rivers": _words("oder nile congo volga rhine indus elbe mekong danube seine amazon ganges"),
}
HELD_OUT_SHARE = 6
"""One slot combination in this many is never trained."""


@dataclass(frozen=True)
class Exercise:
    """One question with its only right answer. ``slots`` name the combination that is trained or held out."""

    kind: str
    question: str
    answer: str
    slots: tuple[str, ...]

    @property
    def held_out(self) -> bool:
        return zlib.crc32("/".join((self.kind, *self.slots)).encode()) % HELD_OUT_SHARE == 0


def _prose(rng: random.Random) -> Exercise:
    service, host, person, day = (rng.choice(words) for words in (SERVICES, HOSTS, PEOPLE, DAYS))
    texts = [
        (
            f"How do I restart {service} on {host}?",
            f"To restart {service} on {host}, first take {host} out of the load balancer. Then run systemctl "
            f"restart {service} on {host} and wait until the health check of {service} is green. Finally put "
            f"{host} back into the load balancer.",
        ),
        (
            f"Where are the logs of {service} on {host}?",
            f"The logs of {service} are stored on {host} in the directory /var/log/{service}. Open the file "
            f"/var/log/{service}/error.log on {host} to see the errors of {service}. Old logs of {service} "
            f"are kept for thirty days.",
        ),
        (
            f"Who looks after {service} on {host} on {day}, {person}?",
            f"On {day} the service {service} on {host} is looked after by {person}. If {service} fails on "
            f"{day}, call {person} and open a ticket for {host}. After {day} please ask the team of "
            f"{service}.",
        ),
    ]
    question, answer = rng.choice(texts)
    return Exercise("prose", question, answer, (service, host))


def _json(rng: random.Random) -> Exercise:
    service, host, owner = (rng.choice(words) for words in (SERVICES, HOSTS, PEOPLE))
    port = rng.randrange(1, 9) * 1000 + rng.randrange(100)
    question = rng.choice(
        [
            f"Write a JSON record for {service} on {host}, port {port}, owner {owner}.",
            f"JSON for {service}, host {host}, port {port}, owner {owner}.",
        ]
    )
    answer = (
        f'{{"service": "{service}", "host": "{host}", "port": {port}, "owner": "{owner}", '
        f'"url": "http://{host}:{port}/{service}", "health": "/health", "log": "/var/log/{service}", '
        f'"status": "ok"}}'
    )
    return Exercise("json", question, answer, (service, host))


def _code(rng: random.Random) -> Exercise:
    verb, noun, condition = rng.choice(list(VERBS)), rng.choice(NOUNS), rng.choice(list(CONDITIONS))
    question = rng.choice(
        [
            f"Write a function to {verb} the {condition} {noun}.",
            f"Python code to {verb} {condition} {noun}, please.",
        ]
    )
    answer = (
        f"def {verb}_{condition}_{noun}({noun}):\n    total = 0\n    for x in {noun}:\n"
        f"        if {CONDITIONS[condition]}:\n            {VERBS[verb]}\n    return total\n\n"
        f"print({verb}_{condition}_{noun}([1, 2, 3]))"
    )
    return Exercise("code", question, answer, (verb, noun, condition))


def _arithmetic(rng: random.Random) -> Exercise:
    step = rng.randrange(1, 10)
    if rng.random() < 0.5:
        start = rng.randrange(1, 80)
        terms = [str(start + i * step) for i in range(12)]
        question = f"Count from {start} in steps of {step}."
    else:
        start = rng.randrange(1, 60)
        terms = [f"{start + i * step} + {step} = {start + (i + 1) * step}" for i in range(6)]
        question = f"Add {step} to {start} step by step."
    return Exercise("arithmetic", question, ", ".join(terms) + ".", (str(start), str(step)))


def _list(rng: random.Random) -> Exercise:
    topic, first, length = rng.choice(list(LISTS)), rng.randrange(12), rng.randrange(8, 12)
    words = LISTS[topic]
    lines = [f"{i + 1}. {words[(first + i) % len(words)]}" for i in range(length)]
    question = f"List {length} {topic} starting with {words[first]}."
    return Exercise("list", question, "\n".join(lines), (topic, str(first), str(length)))


_MAKERS: dict[str, Callable[[random.Random], Exercise]] = {
    "prose": _prose,
    "json": _json,
    "code": _code,
    "arithmetic": _arithmetic,
    "list": _list,
}
KINDS = tuple(_MAKERS)


def draw(kind: str, rng: random.Random, *, held_out: bool = False) -> Exercise:
    """Draw one exercise from the trained or from the held-out side of the split."""
    while True:
        exercise = _MAKERS[kind](rng)
        if exercise.held_out == held_out:
            return exercise


def held_out_exercises(per_kind: int, seed: int = 7) -> list[Exercise]:
    """``per_kind`` different held-out questions of each kind; the first ones do not depend on how many."""
    exercises: list[Exercise] = []
    for kind in KINDS:
        rng = random.Random(f"{seed}/{kind}")
        chosen: dict[str, Exercise] = {}
        while len(chosen) < per_kind:
            exercise = draw(kind, rng, held_out=True)
            chosen.setdefault(exercise.question, exercise)
        exercises += chosen.values()
    return exercises
