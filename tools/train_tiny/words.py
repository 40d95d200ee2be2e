"""Word lists for templates, from `texts/words.txt`."""

from pathlib import Path

_FILE = Path(__file__).parent / "texts" / "words.txt"


def _read() -> dict[str, list[str]]:
    lines = [line for line in _FILE.read_text().splitlines() if not line.startswith("#")]
    return {name: words.split(" | ") for name, words in (line.split(": ", 1) for line in lines)}


def _mapping(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


_LISTS = _read()
FIRST = _LISTS["FIRST"]
LAST = _LISTS["LAST"]
CITIES = _LISTS["CITIES"]
COLORS = _LISTS["COLORS"]
THINGS = _LISTS["THINGS"]
ANIMALS = _LISTS["ANIMALS"]
FRUIT = _LISTS["FRUIT"]
FOODS = _LISTS["FOODS"]
ROOMS = _LISTS["ROOMS"]
PLACES = _LISTS["PLACES"]
JOBS = _LISTS["JOBS"]
HOBBIES = _LISTS["HOBBIES"]
DAYS = _LISTS["DAYS"]
MONTHS = _LISTS["MONTHS"]
MOODS = _LISTS["MOODS"]
WEATHER = _LISTS["WEATHER"]
TOPICS = _LISTS["TOPICS"]
SONGS = _LISTS["SONGS"]
ARTISTS = _LISTS["ARTISTS"]
COMPANIES = _LISTS["COMPANIES"]
PRODUCTS = _LISTS["PRODUCTS"]
CURRENCIES = _LISTS["CURRENCIES"]
OPPOSITES = _LISTS["OPPOSITES"]
SOUNDS = _mapping(_LISTS["SOUNDS"])
GROUPS = {k.removeprefix("GROUP "): v for k, v in _LISTS.items() if k.startswith("GROUP ")}
NUMBERS = _LISTS["NUMBERS"]
CAPITALS_ZH = _mapping(_LISTS["CAPITALS_ZH"])
LANGUAGES = _mapping(_LISTS["LANGUAGES"])
TEACHER_QUESTIONS = _LISTS["TEACHER_QUESTIONS"]
TEACHER_STORIES = _LISTS["TEACHER_STORIES"]
