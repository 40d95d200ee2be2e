"""How requests vary: politeness, punctuation, thinking or not, system texts."""

import random
from collections.abc import Sequence

from diptych.text.chat import Message
from train_tiny.dialogue import Dialogue, assistant, system, user

SYSTEMS = (
    "You are a helpful assistant.", "You are a friendly assistant.", "Be brief.", "Answer in one sentence.",
    "Answer shortly and clearly.", "You are Diptych's tiny model.", "You help people with simple questions.",
    "You are a helpful AI assistant. Answer the user's questions.", "Be kind and clear.",
)  # fmt: skip
EFFORTS = (75, 75, 75, 75, 50, 100)


def asked(rng: random.Random, question: str) -> str:
    """The question as somebody may type it."""
    draw = rng.random()
    if draw < 0.55:
        return question
    if draw < 0.65:
        return question.lower()
    if draw < 0.73:
        return question.rstrip("?.!")
    if draw < 0.80:
        return question.lower().rstrip("?.!")
    opening = rng.choice(("Hi! ", "Hello. ", "Please tell me: ", "I have a question. ", "Hey, "))
    return opening + question


def politely(rng: random.Random, question: str) -> str:
    """The question as somebody may type it, its names and numbers untouched."""
    draw = rng.random()
    if draw < 0.65:
        return question
    if draw < 0.8:
        return question.rstrip("?.")
    return rng.choice(("Please: ", "Hi! ", "Hello. ", "Can you help me? ", "Hey, ")) + question


def effort(rng: random.Random) -> int | None:
    """Thinking on or off, evenly."""
    return rng.choice(EFFORTS) if rng.random() < 0.5 else None


def musing(rng: random.Random, question: str) -> str:
    """What to think about a plain question before answering it."""
    short = question.strip()[:80].rstrip("?.! ")
    return rng.choice(
        (
            f'The user says "{short}". A short answer is enough.',
            f'The user asks: "{short}". I will answer in simple words.',
            "This is a simple question. I will answer it directly.",
            "I can answer this in one or two sentences.",
        )
    )


def dialogue(
    rng: random.Random, turns: Sequence[tuple[str, str, str]], *, with_system: float = 0.15
) -> Dialogue:
    """A conversation of (question, reasoning, answer) turns."""
    messages: list[Message] = []
    if rng.random() < with_system:
        messages.append(system(rng.choice(SYSTEMS)))
    for question, reasoning, answer in turns:
        messages += [user(question), assistant(answer, reasoning)]
    return Dialogue(tuple(messages), effort=effort(rng))


def repeats(text: str) -> bool:
    """The same four words come three times, or nothing is said."""
    words = text.split()
    grams = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return not words or any(grams.count(gram) > 2 for gram in set(grams))
