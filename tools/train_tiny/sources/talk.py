"""Small talk, simple explanations, lists and little stories."""

import random
from collections.abc import Callable, Sequence

from train_tiny import words as w
from train_tiny.dialogue import Dialogue
from train_tiny.material import pairs
from train_tiny.sources.style import asked, dialogue, musing

Turn = tuple[str, str, str]
_ENGLISH = pairs("chat_en") + pairs("everyday_en")


def draw(rng: random.Random) -> Dialogue:
    """One conversation of one to four turns."""
    chinese = rng.random() < 0.15
    count = rng.choice((1, 1, 1, 2, 2, 3, 4))
    makers: Sequence[Callable[[random.Random], Turn]] = (
        (_own_zh, _own_zh, _small_zh) if chinese else (_own, _own, _own, _small, _story)
    )
    return dialogue(rng, [rng.choice(makers)(rng) for _ in range(count)])


def turn(rng: random.Random) -> Turn:
    """One question with its answer, in English."""
    return rng.choice((_own, _own, _small))(rng)


def story(rng: random.Random) -> Dialogue:
    """One story."""
    return dialogue(rng, [_story(rng)])


def chat_of(rng: random.Random, turns: Sequence[str]) -> Dialogue:
    """A ready conversation, user and assistant by turns."""
    return dialogue(
        rng, [(q, musing(rng, q), a) for q, a in zip(turns[::2], turns[1::2], strict=True)]
    )


def _own(rng: random.Random) -> Turn:
    questions, answers = rng.choice(_ENGLISH)
    question = rng.choice(questions)
    return asked(rng, question), musing(rng, question), rng.choice(answers)


def _own_zh(rng: random.Random) -> Turn:
    questions, answers = rng.choice(pairs("chat_zh"))
    question = rng.choice(questions)
    if rng.random() < 0.3:
        question = rng.choice((question.rstrip("。！？"), "请问，" + question))
    return (
        question,
        rng.choice(("这个问题很简单，我直接回答。", "我用中文简短地回答。")),
        rng.choice(answers),
    )


def _small_zh(rng: random.Random) -> Turn:
    if rng.random() < 0.5:
        country, capital = rng.choice(list(w.CAPITALS_ZH.items()))
        question = rng.choice(
            (f"{country}的首都是哪里？", f"{country}的首都是什么？", f"请问{country}的首都在哪里？")
        )
        return question, f"{country}的首都是{capital}。", f"{country}的首都是{capital}。"
    a, b = rng.randint(0, 50), rng.randint(0, 49)
    return f"{a}加{b}等于多少？", f"{a}+{b}={a + b}", f"{a}加{b}等于{a + b}。"


def _small(rng: random.Random) -> Turn:
    return rng.choice((_name_some, _opposite, _sound, _day, _month, _spell, _about_me, _favourite))(
        rng
    )


def _name_some(rng: random.Random) -> Turn:
    group, members = rng.choice(list(w.GROUPS.items()))
    n = rng.randint(2, 5)
    said = rng.choice((w.NUMBERS[n], str(n)))
    picked = rng.sample(members, n)
    question = rng.choice(
        (
            f"Name {said} {group}.",
            f"List {said} {group}.",
            f"Can you name {said} {group}?",
            f"Tell me {said} {group}.",
        )
    )
    text = ", ".join(picked[:-1]) + " and " + picked[-1]
    answer = rng.choice(
        (f"{text[0].upper()}{text[1:]}.", f"Here are {w.NUMBERS[n]} {group}: {text}.")
    )
    return asked(rng, question), f"The user wants {w.NUMBERS[n]} {group}: {text}.", answer


def _opposite(rng: random.Random) -> Turn:
    a, b = rng.choice(w.OPPOSITES).split(" ")
    if rng.random() < 0.5:
        a, b = b, a
    question = rng.choice(
        (
            f"What is the opposite of {a}?",
            f"Give me the opposite of {a}.",
            f"What is the opposite of the word {a}?",
        )
    )
    return asked(rng, question), f"The opposite of {a} is {b}.", f"The opposite of {a} is {b}."


def _sound(rng: random.Random) -> Turn:
    animal, sound = rng.choice(list(w.SOUNDS.items()))
    question = rng.choice((f"What sound does a {animal} make?", f"What does the {animal} say?"))
    return (
        asked(rng, question),
        f"A {animal} makes the sound {sound}.",
        f"The {animal} says {sound}.",
    )


def _day(rng: random.Random) -> Turn:
    i = rng.randrange(7)
    step, word = rng.choice(((1, "after"), (-1, "before")))
    answer = w.DAYS[(i + step) % 7]
    question = rng.choice(
        (f"Which day comes {word} {w.DAYS[i]}?", f"What day is {word} {w.DAYS[i]}?")
    )
    return (
        asked(rng, question),
        f"The day {word} {w.DAYS[i]} is {answer}.",
        f"{answer} comes {word} {w.DAYS[i]}.",
    )


def _month(rng: random.Random) -> Turn:
    i = rng.randrange(12)
    step, word = rng.choice(((1, "after"), (-1, "before")))
    answer = w.MONTHS[(i + step) % 12]
    question = f"Which month comes {word} {w.MONTHS[i]}?"
    return (
        asked(rng, question),
        f"The month {word} {w.MONTHS[i]} is {answer}.",
        f"{answer} comes {word} {w.MONTHS[i]}.",
    )


def _spell(rng: random.Random) -> Turn:
    word = rng.choice(w.ANIMALS + w.THINGS + w.COLORS)
    spelled = "-".join(word.upper())
    question = rng.choice((f"Spell the word {word}.", f"How do you spell {word}?"))
    return asked(rng, question), f"{word} is spelled {spelled}.", f"{spelled}."


def _about_me(rng: random.Random) -> Turn:
    name = rng.choice(w.FIRST)
    hobby, job, city = rng.choice(w.HOBBIES), rng.choice(w.JOBS), rng.choice(w.CITIES)
    said, answer = rng.choice(
        (
            (f"My name is {name}.", f"Nice to meet you, {name}! How can I help you?"),
            (f"I am {name} and I live in {city}.", f"Hello {name}! How is life in {city}?"),
            (
                f"I like {hobby}.",
                f"{hobby.capitalize()} is a lovely hobby. How often do you do it?",
            ),
            (f"I work as a {job}.", f"That is interesting! What do you like about being a {job}?"),
            (
                f"I am {name}, and I enjoy {hobby}.",
                f"Nice to meet you, {name}! {hobby.capitalize()} sounds like fun.",
            ),
            (
                f"I am going to {city} next week.",
                f"Have a good trip to {city}! What will you do there?",
            ),
        )
    )
    return asked(rng, said), "The user tells me something. I will answer kindly.", answer


def _favourite(rng: random.Random) -> Turn:
    topic = rng.choice(w.TOPICS)
    question = rng.choice(
        (
            f"Do you like {topic}?",
            f"Can we talk about {topic}?",
            f"Let us talk about {topic}.",
            f"I want to talk about {topic}.",
        )
    )
    answer = rng.choice(
        (
            f"Yes, let us talk about {topic}. What do you like about it?",
            f"Gladly. What would you like to know about {topic}?",
        )
    )
    return asked(rng, question), f"The user wants to talk about {topic}.", answer


def _story(rng: random.Random) -> Turn:
    hero, friend = rng.sample(w.ANIMALS, 2)
    name, place, thing, color = (
        rng.choice(w.FIRST),
        rng.choice(w.PLACES),
        rng.choice(w.THINGS),
        rng.choice(w.COLORS),
    )
    mood, weather, food = rng.choice(w.MOODS), rng.choice(w.WEATHER), rng.choice(w.FOODS)
    question = rng.choice(
        (
            f"Tell me a story about a {hero}.",
            f"Write a short story about a {hero}.",
            "Tell me a story.",
            "Tell me a short story.",
            f"Can you tell me a story about a {hero} and a {friend}?",
        )
    )
    opening = rng.choice(
        (
            f"Once upon a time there was a {mood} {hero} named {name}.",
            f"There once lived a {hero} called {name}, who was very {mood}.",
            f"One {weather} morning, a {mood} {hero} named {name} woke up early.",
        )
    )
    middle = rng.choice(
        (
            f"{name} lived near the {place} and had a {color} {thing}.",
            f"In the {place}, {name} found a {color} {thing}.",
            f"{name} walked to the {place} to look for a {thing}.",
        )
    )
    event = rng.choice(
        (
            f"One day the {thing} was gone, so {name} asked a {friend} for help.",
            f"Then a {friend} came by and asked for some {food}.",
            f"There {name} met a {friend} who was cold and hungry.",
            f"Suddenly it became {weather}, and a {friend} was lost.",
        )
    )
    ending = rng.choice(
        (
            "Together they found the way home, and from that day on they were friends.",
            f"{name} shared everything, and the {friend} was happy again.",
            f"They ate {food} together and laughed until the evening.",
            f"In the end {name} learned that friends are better than any {thing}.",
        )
    )
    return (
        asked(rng, question),
        f"The user wants a story. I will write about a {hero} named {name}.",
        f"{opening} {middle} {event} {ending}",
    )
