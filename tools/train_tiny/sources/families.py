"""Families of tools: what they are called, what they take, how one asks for them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from train_tiny import words as w


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter: its possible names, JSON type, description and values."""

    names: tuple[str, ...]
    kind: str
    about: str
    draw: Callable[[random.Random], object]
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """Tools that do one thing. Utterances and replies name slots by number: {0}, {1}."""

    names: tuple[str, ...]
    about: tuple[str, ...]
    slots: tuple[Slot, ...]  # all used by every utterance but those behind `required`
    utterances: tuple[str, ...]
    longer: tuple[str, ...]  # utterances that name the optional slots, too
    required: int
    reply: Callable[[random.Random, Sequence[object]], tuple[object, str]]


def one(options: Sequence[str]) -> Callable[[random.Random], object]:
    return lambda rng: rng.choice(options)


def number(low: int, high: int) -> Callable[[random.Random], object]:
    return lambda rng: rng.randint(low, high)


def _weather(rng: random.Random, v: Sequence[object]) -> tuple[object, str]:
    sky, degrees = rng.choice(w.WEATHER), rng.randint(-5, 35)
    return {"temperature": degrees, "sky": sky}, f"It is {sky} in {v[0]}, with {degrees} degrees."


def _time(rng: random.Random, v: Sequence[object]) -> tuple[object, str]:
    clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    return {"time": clock}, f"It is {clock} in {v[0]}."


def _done(template: str) -> Callable[[random.Random, Sequence[object]], tuple[object, str]]:
    return lambda rng, v: (
        rng.choice(({"ok": True}, "done", {"status": "ok"})),
        template.format(*v),
    )


def _rate(rng: random.Random, v: Sequence[object]) -> tuple[object, str]:
    value = rng.randint(1, 2000)
    return {"result": value}, f"{v[0]} {v[1]} are {value} {v[2]}."


def _price(rng: random.Random, v: Sequence[object]) -> tuple[object, str]:
    value = rng.randint(3, 900)
    return {"price": value}, f"The {v[0]} costs {value} dollars."


def _stock(rng: random.Random, v: Sequence[object]) -> tuple[object, str]:
    value = rng.randint(10, 500)
    return {"price": value}, f"The stock of {v[0]} is at {value} dollars."


def _sum(rng: random.Random, v: Sequence[object]) -> tuple[object, str]:
    value = int(str(v[0])) + int(str(v[1]))
    return value, f"The result is {value}."


def _product(rng: random.Random, v: Sequence[object]) -> tuple[object, str]:
    value = int(str(v[0])) * int(str(v[1]))
    return value, f"The result is {value}."


def _found(rng: random.Random, v: Sequence[object]) -> tuple[object, str]:
    count = rng.randint(2, 40)
    return {"results": count}, f"I found {count} results for {v[0]}."


def _flight(rng: random.Random, v: Sequence[object]) -> tuple[object, str]:
    code = f"{rng.choice('ABDLKS')}{rng.choice('AFHLS')}{rng.randint(100, 999)}"
    return {"flight": code}, f"Flight {code} goes from {v[0]} to {v[1]}."


def _translated(rng: random.Random, v: Sequence[object]) -> tuple[object, str]:
    word = "".join(rng.choice("aeioulmnrst") for _ in range(5))
    return {"text": word}, f"In {v[1]}, {v[0]} is {word}."


CITY = Slot(("city", "location", "place", "town"), "string", "Name of the city", one(w.CITIES))
ROOM = Slot(("room", "area", "location"), "string", "The room", one(w.ROOMS))
PERSON = Slot(
    ("name", "person", "contact", "recipient"), "string", "Name of the person", one(w.FIRST)
)
DAY = Slot(("day", "date", "weekday"), "string", "Day of the week", one(w.DAYS))
A = Slot(("a", "x", "first", "num1"), "integer", "First number", number(1, 999))
B = Slot(("b", "y", "second", "num2"), "integer", "Second number", number(1, 999))

FAMILIES = (
    Family(("get_weather", "weather", "fetch_weather", "current_weather", "weather_lookup"), ("Get the current weather", "Current weather for a city", "Look up the weather"), (CITY, Slot(("days", "num_days"), "integer", "Number of days", number(2, 9))), ("What is the weather in {0}?", "How is the weather in {0}?", "Is it raining in {0}?", "What's the weather like in {0} today?", "Weather in {0}", "Do I need an umbrella in {0}?"), ("What will the weather be in {0} for the next {1} days?", "Give me the weather in {0} for {1} days."), 1, _weather),
    Family(("get_time", "current_time", "time_in_city", "clock"), ("Get the current time in a city", "Current local time"), (CITY,), ("What time is it in {0}?", "Tell me the time in {0}.", "How late is it in {0}?"), (), 1, _time),
    Family(("turn_on_light", "light_on", "switch_on_light"), ("Turn on the light in a room",), (ROOM, Slot(("brightness", "level"), "integer", "Brightness in percent", number(10, 100))), ("Turn on the light in the {0}.", "Switch on the {0} light.", "Light on in the {0}, please.", "It is dark in the {0}."), ("Turn on the light in the {0} at {1} percent.", "Set the {0} light to {1} percent."), 1, _done("The light in the {0} is on.")),
    Family(("turn_off_light", "light_off", "switch_off_light"), ("Turn off the light in a room",), (ROOM,), ("Turn off the light in the {0}.", "Switch off the {0} light.", "Lights out in the {0}."), (), 1, _done("The light in the {0} is off.")),
    Family(("set_temperature", "set_thermostat", "heat_room"), ("Set the temperature of a room", "Control the heating"), (ROOM, Slot(("temperature", "degrees", "value"), "integer", "Degrees Celsius", number(15, 28))), ("Set the {0} to {1} degrees.", "Make the {0} {1} degrees warm.", "Heat the {0} to {1} degrees."), (), 2, _done("The {0} is set to {1} degrees.")),
    Family(("set_timer", "start_timer", "create_timer"), ("Start a timer",), (Slot(("minutes", "duration", "mins"), "integer", "Minutes", number(1, 90)),), ("Set a timer for {0} minutes.", "Start a timer of {0} minutes.", "Wake me in {0} minutes.", "Remind me in {0} minutes."), (), 1, _done("The timer is set for {0} minutes.")),
    Family(("set_alarm", "create_alarm", "add_alarm"), ("Set an alarm",), (Slot(("hour", "time"), "integer", "Hour of the day", number(1, 23)), DAY), ("Set an alarm for {0} o'clock.", "Wake me up at {0} o'clock."), ("Set an alarm for {0} o'clock on {1}.", "Wake me up at {0} o'clock on {1}."), 1, _done("The alarm is set for {0} o'clock.")),
    Family(("send_message", "send_sms", "text_contact", "message"), ("Send a message to somebody", "Send a text message"), (PERSON, Slot(("text", "message", "content", "body"), "string", "Text of the message", one(["I am late", "see you soon", "happy birthday", "call me back", "I am at home", "dinner is ready", "good luck", "the meeting is over", "bring some milk", "thank you"]))), ("Send {0} the message: {1}", "Tell {0}: {1}", 'Text "{1}" to {0}.', "Write to {0}: {1}"), (), 2, _done("I sent the message to {0}.")),
    Family(("call_contact", "phone_call", "make_call"), ("Call somebody on the phone",), (PERSON,), ("Call {0}.", "Phone {0}, please.", "I want to talk to {0} on the phone."), (), 1, _done("I am calling {0}.")),
    Family(("send_email", "write_email", "mail"), ("Send an email",), (PERSON, Slot(("subject", "title", "topic"), "string", "Subject line", one(w.TOPICS))), ("Send an email to {0} about {1}.", "Write {0} an email about {1}."), (), 2, _done("The email to {0} is sent.")),
    Family(("play_music", "play_song", "start_music"), ("Play a song",), (Slot(("song", "title", "track"), "string", "Title of the song", one(w.SONGS)), Slot(("artist", "band"), "string", "Who plays it", one(w.ARTISTS))), ("Play {0}.", "Play the song {0}.", "I want to hear {0}."), ("Play {0} by {1}.", "I want to hear {0} by {1}."), 1, _done("Now playing {0}.")),
    Family(("set_volume", "volume", "change_volume"), ("Set the volume",), (Slot(("level", "volume", "percent"), "integer", "Volume in percent", number(0, 100)),), ("Set the volume to {0}.", "Volume to {0} percent.", "Make it {0} percent loud."), (), 1, _done("The volume is at {0} percent.")),
    Family(("add_to_list", "add_item", "shopping_list_add"), ("Add an item to the shopping list",), (Slot(("item", "product", "name"), "string", "What to buy", one(w.FOODS)), Slot(("quantity", "count", "amount"), "integer", "How many", number(2, 12))), ("Add {0} to the shopping list.", "We need {0}.", "Put {0} on my list.", "I have to buy {0}."), ("Add {1} packs of {0} to the list.", "Put {1} {0} on the shopping list."), 1, _done("I added {0} to the list.")),
    Family(("add", "sum", "add_numbers", "calculate_sum"), ("Add two numbers", "Sum of two numbers"), (A, B), ("What is {0} plus {1}?", "Add {0} and {1}.", "Calculate {0} + {1}."), (), 2, _sum),
    Family(("multiply", "times", "multiply_numbers"), ("Multiply two numbers",), (A, B), ("What is {0} times {1}?", "Multiply {0} by {1}.", "Calculate {0} * {1}."), (), 2, _product),
    Family(("convert_currency", "exchange", "currency_converter"), ("Convert money from one currency to another",), (Slot(("amount", "value"), "integer", "Amount of money", number(1, 999)), Slot(("from", "source", "from_currency"), "string", "Currency code", one(w.CURRENCIES)), Slot(("to", "target", "to_currency"), "string", "Currency code", one(w.CURRENCIES))), ("Convert {0} {1} to {2}.", "How much are {0} {1} in {2}?", "Change {0} {1} into {2}."), (), 3, _rate),
    Family(("get_price", "price_of", "product_price"), ("Get the price of a product",), (Slot(("product", "item", "name"), "string", "Name of the product", one(w.PRODUCTS)),), ("What does the {0} cost?", "How much is a {0}?", "Tell me the price of the {0}."), (), 1, _price),
    Family(("get_stock_price", "stock_price", "stock"), ("Get the price of a stock",), (Slot(("company", "symbol", "name"), "string", "Name of the company", one(w.COMPANIES)),), ("What is the stock price of {0}?", "How is the {0} stock doing?", "Stock price of {0}"), (), 1, _stock),
    Family(("search", "web_search", "search_web", "find"), ("Search the web", "Search for a topic"), (Slot(("query", "q", "text", "topic"), "string", "What to search for", one([f"{a} {b}" for a in ("cheap", "best", "new", "old", "green") for b in ("laptops", "hotels", "books", "shoes", "recipes", "films", "bikes")])),), ("Search for {0}.", "Search the web for {0}.", "Find {0}.", "Look up {0}."), (), 1, _found),
    Family(("find_flight", "search_flights", "flights"), ("Find a flight between two cities",), (Slot(("from", "origin", "departure"), "string", "City of departure", one(w.CITIES)), Slot(("to", "destination", "arrival"), "string", "City of arrival", one(w.CITIES)), DAY), ("Find a flight from {0} to {1}.", "I want to fly from {0} to {1}."), ("Find a flight from {0} to {1} on {2}.", "I need a flight from {0} to {1} on {2}."), 2, _flight),
    Family(("book_table", "reserve_table", "restaurant_booking"), ("Book a table in a restaurant",), (Slot(("people", "guests", "party_size"), "integer", "Number of people", number(2, 12)), DAY, Slot(("hour", "time"), "integer", "Hour", number(6, 10))), ("Book a table for {0} on {1}.", "Reserve a table for {0} people on {1}."), ("Book a table for {0} on {1} at {2}.",), 2, _done("The table for {0} on {1} is booked.")),
    Family(("create_event", "add_event", "calendar_add", "schedule"), ("Create an event in the calendar",), (Slot(("title", "event", "name"), "string", "Name of the event", one(["lunch", "dinner", "meeting", "party", "dentist", "yoga", "football", "concert"])), DAY), ("Add {0} on {1} to my calendar.", "Schedule {0} for {1}.", "Plan {0} on {1}."), (), 2, _done("{0} is planned for {1}.")),
    Family(("translate", "translate_text", "translator"), ("Translate a text into another language",), (Slot(("text", "word", "phrase"), "string", "Text to translate", one(w.FOODS + w.ANIMALS + w.THINGS)), Slot(("language", "target", "to"), "string", "Target language", one(["French", "German", "Spanish", "Italian", "Chinese", "Japanese"]))), ("Translate {0} into {1}.", "What is {0} in {1}?", "How do you say {0} in {1}?"), (), 2, _translated),
    Family(("open_door", "unlock_door", "door"), ("Open a door",), (Slot(("door", "which", "name"), "string", "Which door", one(["front door", "back door", "garage door", "garden gate", "cellar door"])),), ("Open the {0}.", "Unlock the {0}.", "Please open the {0}."), (), 1, _done("The {0} is open.")),
    Family(("take_note", "save_note", "add_note", "create_note"), ("Save a note",), (Slot(("text", "note", "content"), "string", "Text of the note", one([f"{a} {b}" for a in ("buy", "paint the", "repair the", "clean the", "sell the") for b in ("bike", "lamp", "window", "car", "chair", "garden")])),), ("Note: {0}", "Write down: {0}", "Remember this: {0}", "Make a note: {0}"), (), 1, _done("I saved the note.")),
    Family(("get_user", "find_user", "lookup_user", "get_customer"), ("Get a user by number", "Look up a customer"), (Slot(("id", "user_id", "number"), "integer", "Number of the user", number(1, 9999)), Slot(("verbose", "details", "full"), "boolean", "Show all details", lambda rng: True)), ("Who is user {0}?", "Look up user {0}.", "Show me user number {0}."), ("Show me all details of user {0}.",), 1, lambda rng, v: ((n := rng.choice(w.FIRST)) and {"name": n}, f"User {v[0]} is {n}.")),
    Family(("track_order", "order_status", "get_order"), ("Status of an order",), (Slot(("order_id", "id", "order"), "integer", "Number of the order", number(100, 9999)),), ("Where is my order {0}?", "What is the status of order {0}?", "Track order {0}."), (), 1, lambda rng, v: ((s := rng.choice(("sent", "packed", "delivered", "waiting"))) and {"status": s}, f"Order {v[0]} is {s}.")),
    Family(("start_vacuum", "clean_room", "vacuum"), ("Let the robot clean a room",), (ROOM,), ("Clean the {0}.", "Vacuum the {0}.", "The {0} is dirty."), (), 1, _done("The robot cleans the {0}.")),
    Family(("paint", "set_color", "change_color"), ("Change the color of a thing",), (Slot(("thing", "object", "item"), "string", "What to paint", one(w.THINGS)), Slot(("color", "colour"), "string", "The new color", one(w.COLORS))), ("Paint the {0} {1}.", "Make the {0} {1}.", "Change the color of the {0} to {1}."), (), 2, _done("The {0} is {1} now.")),
)  # fmt: skip

VERBS = (
    "get",
    "set",
    "make",
    "find",
    "update",
    "delete",
    "check",
    "start",
    "stop",
    "open",
    "list",
    "count",
    "move",
    "send",
    "read",
)
_ABOUT = ("{verb} the {noun}", "{verb} a {noun}", "Use this to {verb} a {noun}")


def invented(rng: random.Random) -> Family:
    """A tool nobody has, so that names are read from the prompt and not known by heart."""
    verb, noun = (
        rng.choice(VERBS),
        rng.choice(w.THINGS + w.ANIMALS + w.PRODUCTS + w.JOBS + w.TOPICS),
    )
    keys = rng.sample(
        w.THINGS
        + w.TOPICS
        + ["width", "height", "speed", "level", "mode", "owner", "code", "date", "kind", "unit"],
        rng.randint(1, 3),
    )
    slots = tuple(_invented_slot(rng, key) for key in keys)
    told = " and ".join(f"{key} {{{i}}}" for i, key in enumerate(keys))
    utterances = (
        f"{verb.capitalize()} the {noun} with {told}.",
        f"Please {verb} a {noun}: {told}.",
        f"I want to {verb} the {noun}, {told}.",
    )
    joined = rng.choice(
        (f"{verb}_{noun}", f"{noun}_{verb}", f"{verb}{noun.capitalize()}", f"{noun}.{verb}")
    )
    about = tuple(form.format(verb=verb, noun=noun) for form in _ABOUT)
    return Family((joined,), about, slots, utterances, (), len(slots), _done(f"I used {joined}."))


def _invented_slot(rng: random.Random, key: str) -> Slot:
    kind = rng.choice(("string", "string", "integer", "boolean"))
    draw = {
        "string": one(w.FIRST + w.CITIES + w.COLORS + w.FOODS + w.THINGS),
        "integer": number(0, 9999),
        "boolean": lambda rng: rng.random() < 0.5,
    }[kind]
    return Slot((key,), kind, f"The {key}", draw)
