"""A hundred JSON schemas of mixed difficulty, some of which no grammar can honour."""

from typing import Any

Schema = dict[str, Any]


def record(required: str = "", /, **properties: Any) -> Schema:
    """An object with these properties, all required unless named otherwise, and no others."""
    names = required.split() if required else list(properties)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def text(most: int = 20, least: int = 0) -> Schema:
    return {"type": "string", "minLength": least, "maxLength": most}


def whole(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def listed(items: Any, most: int = 4, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def like(pattern: str) -> Schema:
    return {"type": "string", "pattern": pattern}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def with_definitions(schema: Schema, **definitions: Any) -> Schema:
    return schema | {"$defs": definitions}


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


FREE: Schema = {"type": "string"}
YES: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number", "minimum": -1000, "maximum": 1000}

FLAT = [
    record(name=FREE, age=whole(0, 120)),
    record(title=text(40, 1), year=whole(1900, 2030), rating={"type": "number", "minimum": 0, "maximum": 10}),
    record(city=text(), country=text(2, 2), capital=YES),
    record("id", id=whole(1, 99999), note=text(30), done=YES),
    record(x=NUMBER, y=NUMBER, z=NUMBER),
    record(name=text(12), email=text(30), active=YES, score=whole(0, 100)),
    record("a b", a=YES, b=YES, c=YES, d=YES),
    record(question=FREE, answer=FREE),
    record(first=text(15, 1), middle={"type": ["string", "null"], "maxLength": 10}, last=text(15, 1)),
    record(width=whole(1, 4096), height=whole(1, 4096), depth=whole(8, 32)),
    {"type": "object", "properties": {"k": text(10)}, "required": ["k"], "maxProperties": 1},
    record(count={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10}, unit=text(8)),
    record(**{"a key with spaces": text(10), "ключ": text(10), 'quo"ted': YES}),
    record(summary=FREE),
]
ENUMS = [
    record(status=one_of("open", "closed", "pending")),
    record(color=one_of("red", "green", "blue"), size=one_of("S", "M", "L", "XL"), stock=whole(0, 50)),
    record(kind={"const": "event"}, level=one_of("debug", "info", "warning", "error")),
    record(weekday=one_of("Monday", "Tuesday", "Wednesday", "Thursday", "Friday"), open=YES),
    {"enum": ["yes", "no", "maybe"]},
    {"enum": [1, 2, 3, "four", None, True, {"five": 5}]},
    record(mixed=one_of(1, "one", None, False)),
    record(version={"const": 2}, mode=one_of("fast", "safe"), tags=listed(one_of("a", "b", "c"), 3)),
    record(
        suit=one_of("hearts", "spades", "clubs", "diamonds"), rank=one_of(*range(2, 11), "J", "Q", "K", "A")
    ),
    record(
        sentiment=one_of("positive", "neutral", "negative"),
        confidence={"type": "number", "minimum": 0, "maximum": 1},
    ),
    record(country=one_of("Austria", "Belgium", "Chad", "Denmark", "Egypt", "France", "Ghana")),
    record(answer=one_of(True, False), why=one_of("obvious", "looked up", "guessed")),
    {"const": {"fixed": [1, 2, 3]}},
    record(unit=one_of("°C", "°F", "K"), value=NUMBER),
]
PATTERNS = [
    record(phone=like(r"^\+[0-9]{1,3} [0-9]{4,10}$")),
    record(date=like(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"), hour=whole(0, 23)),
    record(code=like("^[A-Z]{3}-[0-9]{4}$"), name=text(20)),
    record(hex=like("^#[0-9a-f]{6}$"), alpha={"type": "number", "minimum": 0, "maximum": 1}),
    record(slug=like("^[a-z]{1,10}(-[a-z]{1,10}){0,3}$")),
    record(ip={"type": "string", "format": "ipv4"}),
    record(when={"type": "string", "format": "date-time"}, what=text(20)),
    record(day={"type": "string", "format": "date"}, time={"type": "string", "format": "time"}),
    record(id={"type": "string", "format": "uuid"}),
    record(mail={"type": "string", "format": "email"}, name=text(15)),
    record(plate=like("^[A-Z]{1,3} ?[A-Z]{1,2} ?[0-9]{1,4}$"), valid=YES),
    record(version=like(r"^(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})$")),
    record(keys=listed(like("^k_[0-9]{2}$"), 3, 1)),
    {"type": "object", "patternProperties": {"^x_[a-z]{1,4}$": whole(0, 9)}, "additionalProperties": False,
     "maxProperties": 3},
]  # fmt: skip
NUMBERS = [
    record(n=whole(-5, 5)),
    record(
        price={"type": "number", "minimum": 0, "maximum": 99.99},
        tax={"type": "number", "minimum": 0, "maximum": 0.5},
    ),
    record(even={"type": "integer", "multipleOf": 2, "minimum": 0, "maximum": 100}),
    record(big=whole(10**9, 10**10), small=whole(-(10**6), -(10**5))),
    whole(1, 6),
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    record(
        latitude={"type": "number", "minimum": -90, "maximum": 90},
        longitude={"type": "number", "minimum": -180, "maximum": 180},
    ),
    record(steps={"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 10}),
    record(year=whole(1000, 9999), month=whole(1, 12), day=whole(1, 31)),
    record(any={"type": "integer"}, text=text(5)),
    listed(whole(0, 255), 4, 4),
    record(ratio={"type": ["number", "null"], "minimum": 0, "maximum": 5}),
]
ARRAYS = [
    listed(FREE, 3, 1),
    listed(record(name=text(10), done=YES), 3, 1),
    record(matrix=listed(listed(whole(0, 9), 3, 3), 3, 3)),
    record(todo=listed(text(25, 3), 4, 2), priority=one_of("low", "high")),
    {"type": "array", "prefixItems": [text(8), whole(0, 9), YES], "items": False, "minItems": 3},
    {"type": "array", "prefixItems": [one_of("point")], "items": NUMBER, "minItems": 3, "maxItems": 4},
    record(tags=listed(one_of("red", "blue"), 5), ids=listed(whole(1, 99), 3, 1)),
    listed(listed(one_of("x", "o", " "), 3, 3), 3, 3),
    record(words=listed(like("^[a-z]{2,8}$"), 6, 2)),
    record(
        "items", items=listed(record(sku=like("^[A-Z]{2}[0-9]{3}$"), qty=whole(1, 9)), 3, 1), total=NUMBER
    ),
    listed({"type": ["integer", "null"]}, 5, 2),
    record(
        pairs=listed(
            {"type": "array", "prefixItems": [text(6), whole(0, 99)], "items": False, "minItems": 2}, 3
        )
    ),
]
NESTED = [
    record(user=record(name=text(15), address=record(street=text(20), zip=like("^[0-9]{5}$")))),
    record(a=record(b=record(c=record(d=record(e=whole(0, 9)))))),
    record(company=record(name=text(20), staff=listed(record(name=text(12), role=one_of("dev", "ops")), 3))),
    record(order=record(id=whole(1, 999), lines=listed(record(item=text(12), price=NUMBER), 2, 1)), paid=YES),
    record("meta", meta=record("lang", lang=one_of("en", "de"), words=whole(0, 999)), body=text(40)),
    record(game=record(board=listed(listed(one_of(0, 1, 2), 3, 3), 3, 3), turn=one_of("black", "white"))),
    record(recipe=record(name=text(20), steps=listed(record(n=whole(1, 9), do=text(30)), 3, 1))),
    record(config=record(debug=YES, server=record(host=text(15), port=whole(1, 65535)))),
    record(trip=record(start=record(x=whole(0, 9), y=whole(0, 9)), end=record(x=whole(0, 9), y=whole(0, 9)))),
    {"type": "object", "properties": {"free": {"type": "object", "additionalProperties": whole(0, 9),
     "maxProperties": 3}}, "required": ["free"], "additionalProperties": False},
    record(reply=record(thought=FREE, action=one_of("search", "answer"), input=text(30))),
]  # fmt: skip
REFERENCES = [
    with_definitions(record(home=ref("place"), work=ref("place")), place=record(city=text(12), zip=text(6))),
    with_definitions(record(root=ref("node")), node=record("value", value=whole(0, 9), next=ref("node"))),
    with_definitions(ref("tree"), tree=record("leaf", leaf=YES, children=listed(ref("tree"), 2))),
    with_definitions(listed(ref("color"), 4, 1), color=one_of("cyan", "magenta", "yellow")),
    with_definitions(record(a=ref("money"), b=ref("money")),
                     money=record(amount=whole(0, 999), unit=ref("unit")), unit=one_of("EUR", "CHF")),
    with_definitions(record(person=ref("person")), name=text(8, 1),
                     person=record("name", name=text(10), friends=listed(ref("name"), 3))),
    {"definitions": {"id": like("^[a-f0-9]{8}$")}, **record(id=record(value={"$ref": "#/definitions/id"}))},
    with_definitions({"allOf": [ref("base"), {"required": ["name"]}]},
                     base={"type": "object", "properties": {"name": text(8)}, "additionalProperties": False}),
]  # fmt: skip
UNIONS = [
    record(value={"anyOf": [whole(0, 99), text(10)]}),
    {"anyOf": [record(cat=text(8)), record(dog=text(8), barks=YES)]},
    {
        "oneOf": [
            record(type={"const": "circle"}, radius=whole(1, 9)),
            record(type={"const": "square"}, side=whole(1, 9)),
        ]
    },
    record(
        result={
            "anyOf": [record(ok={"const": True}, data=text(20)), record(ok={"const": False}, error=text(20))]
        }
    ),
    record(maybe={"anyOf": [{"type": "null"}, record(n=whole(0, 9))]}),
    record(shape={"oneOf": [record(kind=one_of("dot")), record(kind=one_of("line"), length=NUMBER)]}),
    listed({"anyOf": [whole(0, 9), one_of("jack", "queen"), {"type": "null"}]}, 4, 2),
    record(limit={"anyOf": [{"const": "none"}, whole(1, 100)]}, unit=text(5)),
]
HARD = [
    record(tags={"type": "array", "items": text(8), "uniqueItems": True}),
    {"not": {"type": "string"}},
    {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}, "type": "object"},
    {"type": "array", "contains": {"const": 7}},
    {"type": "object", "dependentRequired": {"card": ["address"]}},
    record(password=like(r"^(?=.*[0-9])[a-z0-9]{8,12}$")),
    {"oneOf": [text(10), text(20, 5)]},
]

SCHEMAS: tuple[Schema, ...] = tuple(
    FLAT + ENUMS + PATTERNS + NUMBERS + ARRAYS + NESTED + REFERENCES + UNIONS + HARD
)
