"""Filters in SQL92: RocketMQ's language exactly, parsed once into nodes that look up what they need in stored bytes.

The language is that of RocketMQ's `SelectorParser` (5.5.0), with its habits:

- Properties are texts, and a missing one is null. A comparison with null is null, `x = y` of two missing ones true.
- A property beside a number becomes a number of that kind: int, long or double, as Java reads them. One that is no such
  number makes the evaluation throw. Whatever throws or is null in the end is not delivered.
- AND and OR know three values and go from left to right: what throws behind a decision is not reached.
- NOT binds tighter than `=`: `NOT a = 1` is `(NOT a) = 1`. CONTAINS, STARTSWITH and ENDSWITH of null are false, and so
  are their NOT forms.
- What follows a whole expression is not looked at, beyond that it begins with a token.

`tests/contract/sql_filter` holds it against the original's own results.

Texts stay UTF-8: comparing bytes is comparing characters.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from tandemmq.core.delivery.subscription import MessageFilter

EXPRESSION_LENGTH_MAX: Final = 4_096
"""Characters. Parsing so many takes the event loop some 20 ms, once; a usual filter takes less than one."""
_DEPTH_MAX: Final = 100
"""Of brackets, NOTs and signs within each other. Terms of an AND or OR do not count."""
KNOWN_CHARACTERS_MAX: Final = 1 << 20
"""Of the expressions that are kept, those that were asked for last: some tens of megabytes."""
ENTRY_CHARACTERS: Final = 64
"""What an expression costs beside its characters."""

_GRAMMAR: Final = r"""
    ?start: _or
    _or: or | _and
    or: _or OR _and
    _and: and | _equality
    and: _and AND _equality
    _equality: equal | not_equal | is_null | is_not_null | _comparison
    equal: _equality "=" _comparison
    not_equal: _equality "<>" _comparison
    is_null: _equality IS NULL
    is_not_null: _equality IS NOT NULL
    _comparison: relation | contains | between | not_between | in | _unary
    relation: _comparison (GREATER | GREATER_EQUAL | LESS | LESS_EQUAL) _unary
    contains: _comparison NOT? (CONTAINS | STARTSWITH | ENDSWITH) TEXT
    between: _comparison BETWEEN _unary AND _unary
    not_between: _comparison NOT BETWEEN _unary AND _unary
    in: _comparison NOT? IN "(" TEXT ("," TEXT)* ")"
    _unary: "+" _unary | negate | not | _primary
    negate: "-" _unary
    not: NOT _unary
    _primary: TEXT | INTEGER | FLOAT | TRUE | FALSE | NULL | PROPERTY | "(" _or ")"

    GREATER: ">"
    GREATER_EQUAL: ">="
    LESS: "<"
    LESS_EQUAL: "<="
    TEXT: /'(?:''|[^'])*'/
    INTEGER: /0|[1-9][0-9]*[lL]?/
    FLOAT.2: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
    PROPERTY: /[a-zA-Z_$][a-zA-Z0-9_$]*/
    LINE_COMMENT.2: /--[^\n\r]*(?:\r\n|\n|\r)/
    BLOCK_COMMENT.2: /\/\*[^*]*\*(?:\*|[^*\/][^*]*\*)*\//
    BLANK: /[ \t\n\r\f]+/
    %ignore BLANK
    %ignore LINE_COMMENT
    %ignore BLOCK_COMMENT
    %declare NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH
"""
_KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)


@dataclass(frozen=True, slots=True)
class BadSql:
    """Why an expression is no filter, in words for who wrote it; they name the place."""

    problem: str


class SqlFilter(MessageFilter):
    __slots__ = ("_condition", "expression")

    def __init__(self, expression: str, condition: _Node) -> None:
        super().__init__(codes=None, reads_all=False)
        self.expression: Final = expression
        self._condition: Final = condition

    def matches(self, properties: bytes) -> bool:
        """Whether a record with this property string is wanted: false and null mean no, and so does what throws."""
        try:
            return self._condition.value(properties) is True
        except _ThrowsInJava:
            return False

    def result(self, properties: bytes) -> str:
        """T, F, N (null) or E (throws in RocketMQ), for who asks why a message is not delivered."""
        try:
            return {True: "T", False: "F", None: "N"}[self._condition.value(properties)]  # type: ignore[index]
        except _ThrowsInJava:
            return "E"


def parse_sql(expression: str) -> SqlFilter | BadSql:
    """Compiles an expression, or says what is wrong with it and where. Event loop only."""
    known = known_sql(expression)
    if known is not None:
        return known
    found = _known[expression] = _compiled(expression)
    _known_characters[0] += len(expression) + ENTRY_CHARACTERS
    while _known_characters[0] > KNOWN_CHARACTERS_MAX:
        oldest, _ = _known.popitem(last=False)
        _known_characters[0] -= len(oldest) + ENTRY_CHARACTERS
    return found


def known_sql(expression: str) -> SqlFilter | BadSql | None:
    """What costs nothing to say of an expression; None: it would have to be compiled."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        # Not remembered: it may be megabytes long.
        return BadSql(f"it has {len(expression)} characters, the limit is {EXPRESSION_LENGTH_MAX}")
    found = _known.get(expression)
    if found is not None:
        _known.move_to_end(expression)
    return found


_known: Final[OrderedDict[str, SqlFilter | BadSql]] = OrderedDict()
_known_characters: Final = [0]


def _compiled(expression: str) -> SqlFilter | BadSql:
    try:
        return SqlFilter(expression, _condition(_tree(expression), 0))
    except _Refused as refused:
        return BadSql(refused.problem)


class _Refused(Exception):
    def __init__(self, problem: str, place: Token | Tree[Token] | None = None) -> None:
        super().__init__(problem)
        start = place.start_pos if isinstance(place, Token) else place.meta.start_pos if place is not None else None
        self.problem = problem if start is None else f"at character {start + 1}: {problem}"


class _ThrowsInJava(Exception):
    """RocketMQ's evaluation throws here: a text that is no number beside a number, or a boolean beside a text."""


# Text to tree.


def _keyword_or_property(token: Token) -> Token:
    word = token.upper()
    return Token.new_borrow_pos(word, token, token) if word in _KEYWORDS else token


# Made as the process starts: some 50 ms, which a client's first filter need not take of the event loop.
_PARSER: Final = Lark(
    _GRAMMAR,
    parser="lalr",
    lexer="basic",
    propagate_positions=True,
    lexer_callbacks={"PROPERTY": _keyword_or_property},
)


def _tree(expression: str) -> Tree[Token] | Token:
    interactive = _PARSER.parse_interactive(expression)
    try:
        for _ in interactive.iter_parse():
            pass
    except UnexpectedToken as unexpected:
        # As in the original, the first whole expression counts.
        if "$END" not in interactive.accepts():
            raise _Refused(_told(unexpected)) from unexpected
    except UnexpectedInput as unexpected:
        raise _Refused(_told(unexpected)) from unexpected
    try:
        tree = interactive.feed_eof()
    except UnexpectedToken:
        raise _Refused(f"at character {len(expression) + 1}: the expression ends too early") from None
    return tree  # type: ignore[no-any-return]  # lark types no results


def _told(unexpected: UnexpectedInput) -> str:
    # By name: lark declares it as None, and the compiled form would insist on that.
    place: int | None = getattr(unexpected, "pos_in_stream", None)
    where = f"at character {place + 1}" if place is not None else "at its end"
    if isinstance(unexpected, UnexpectedCharacters):
        return f"{where}: {unexpected.char!r} begins nothing that the language knows"
    if isinstance(unexpected, UnexpectedToken):
        return f"{where}: {str(unexpected.token)[:50]!r} may not stand here"
    return f"{where}: it may not stand here"


# What an expression is made of. Values are None, bool, bytes (a text in UTF-8) and `_Number`.


class _Node:
    __slots__ = ()

    def value(self, properties: bytes) -> object:
        raise NotImplementedError


class _Condition(_Node):
    """A part whose value is True, False or None; what the original calls a BooleanExpression."""

    __slots__ = ()


class _Property(_Node):
    __slots__ = ("_first", "_later")

    def __init__(self, name: str) -> None:
        self._first: Final = f"{name}\x01".encode()
        self._later: Final = f"\x02{name}\x01".encode()

    def value(self, properties: bytes) -> object:
        return self.text(properties)

    def text(self, properties: bytes) -> bytes | None:
        """Of two properties with one name the last counts; one without value is none."""
        later = self._later
        found = properties.rfind(later)
        if found >= 0:
            begin = found + len(later)
        elif properties.startswith(self._first):
            begin = len(self._first)
        else:
            return None
        end = properties.find(b"\x02", begin)
        text = properties[begin:] if end < 0 else properties[begin:end]
        return text or None


class _Text(_Node):
    __slots__ = ("_text",)

    def __init__(self, text: bytes) -> None:
        self._text: Final = text

    def value(self, properties: bytes) -> object:
        return self._text


_INT: Final = 0
_LONG: Final = 1
_DOUBLE: Final = 2


class _Number(_Node):
    """A literal, with its sign: Java's Integer, Long or Double. No other numbers come up."""

    __slots__ = ("kind", "number")

    def __init__(self, kind: int, number: int | float) -> None:
        self.kind: Final = kind
        self.number: Final = number

    def value(self, properties: bytes) -> object:
        return self

    def negated(self) -> _Number:
        # No literal is below zero, so nothing overflows.
        return _Number(self.kind, -self.number)

    def order_of_text(self, text: bytes) -> int:
        """Of a text, read as this kind of number, against this number: -1, 0 or 1."""
        if self.kind == _DOUBLE:
            return _double_order(_double(text), float(self.number))
        number = _integer(text, _INT_MAX if self.kind == _INT else _LONG_MAX)
        return (number > self.number) - (number < self.number)

    def order(self, other: _Number) -> int:
        """This number against another: -1, 0 or 1."""
        if _DOUBLE in (self.kind, other.kind):
            return _double_order(float(self.number), float(other.number))
        return (self.number > other.number) - (self.number < other.number)


class _Constant(_Condition):
    """TRUE, FALSE or NULL."""

    __slots__ = ("_value",)

    def __init__(self, value: bool | None) -> None:
        self._value: Final = value

    def value(self, properties: bytes) -> object:
        return self._value


class _NegatedOther(_Node):
    """A minus before what is no number: null, once the other was looked at."""

    __slots__ = ("_other",)

    def __init__(self, other: _Node) -> None:
        self._other: Final = other

    def value(self, properties: bytes) -> object:
        self._other.value(properties)
        return None


class _PropertyCondition(_Condition):
    """A bare property as a condition: it is a text, and no text is TRUE."""

    __slots__ = ("_property",)

    def __init__(self, own: _Property) -> None:
        self._property: Final = own

    def value(self, properties: bytes) -> object:
        return None if self._property.text(properties) is None else False


class _Not(_Condition):
    __slots__ = ("_condition",)

    def __init__(self, condition: _Node) -> None:
        self._condition: Final = condition

    def value(self, properties: bytes) -> object:
        value = self._condition.value(properties)
        return None if value is None else value is False


class _Any(_Condition):
    """Terms joined by OR."""

    __slots__ = ("_terms",)

    def __init__(self, terms: list[_Node]) -> None:
        self._terms: Final = terms

    def value(self, properties: bytes) -> object:
        result: bool | None = False
        for term in self._terms:
            value = term.value(properties)
            if value is True:
                return True
            if value is None:
                result = None
        return result


class _All(_Condition):
    """Terms joined by AND."""

    __slots__ = ("_terms",)

    def __init__(self, terms: list[_Node]) -> None:
        self._terms: Final = terms

    def value(self, properties: bytes) -> object:
        result: bool | None = True
        for term in self._terms:
            value = term.value(properties)
            if value is False:
                return False
            if value is None:
                result = None
        return result


class _Equal(_Condition):
    __slots__ = ("_left", "_right")

    def __init__(self, left: _Node, right: _Node) -> None:
        self._left: Final = left
        self._right: Final = right

    def value(self, properties: bytes) -> object:
        left, right = self._left.value(properties), self._right.value(properties)
        if left is None:
            return True if right is None else None
        if right is None:
            return False
        if isinstance(left, bytes):
            if isinstance(right, bytes):
                return left == right
            if isinstance(right, _Number):
                return right.order_of_text(left) == 0
            return (left.lower() == b"true") is right
        if isinstance(right, bytes):
            if isinstance(left, _Number):
                return left.order_of_text(right) == 0
            raise _ThrowsInJava  # A boolean on the left of a text: a ClassCastException.
        if isinstance(left, _Number):
            return isinstance(right, _Number) and left.order(right) == 0
        return left is right


class _IsNull(_Condition):
    __slots__ = ("_other",)

    def __init__(self, other: _Node) -> None:
        self._other: Final = other

    def value(self, properties: bytes) -> object:
        return self._other.value(properties) is None


class _Relation(_Condition):
    """One of < <= > >=, by which orders of left against right it is true for."""

    __slots__ = ("_left", "_orders", "_right")

    def __init__(self, left: _Node, right: _Node, orders: tuple[int, ...]) -> None:
        self._left: Final = left
        self._right: Final = right
        self._orders: Final = orders

    def value(self, properties: bytes) -> object:
        left = self._left.value(properties)
        if left is None:
            return None
        right = self._right.value(properties)
        if right is None:
            return None
        if isinstance(left, _Number):
            if isinstance(right, _Number):
                return left.order(right) in self._orders
            assert isinstance(right, bytes), "nothing else may be compared so"
            return -left.order_of_text(right) in self._orders
        assert isinstance(left, bytes), "nothing else may be compared so"
        if isinstance(right, _Number):
            return right.order_of_text(left) in self._orders
        assert isinstance(right, bytes), "nothing else may be compared so"
        return _double_order(_double(left), _double(right)) in self._orders


class _In(_Condition):
    __slots__ = ("_negated", "_property", "_texts")

    def __init__(self, own: _Property, texts: frozenset[bytes], *, negated: bool) -> None:
        self._property: Final = own
        self._texts: Final = texts
        self._negated: Final = negated

    def value(self, properties: bytes) -> object:
        text = self._property.text(properties)
        return None if text is None else (text in self._texts) is not self._negated


class _Contains(_Condition):
    """CONTAINS, STARTSWITH or ENDSWITH; of what is no text, and for an empty search, false even when negated."""

    __slots__ = ("_left", "_negated", "_search", "_test")

    def __init__(self, left: _Node, test: Callable[[bytes, bytes], bool], search: bytes, *, negated: bool) -> None:
        self._left: Final = left
        self._test: Final = test
        self._search: Final = search
        self._negated: Final = negated

    def value(self, properties: bytes) -> object:
        if not self._search:
            return False
        text = self._left.value(properties)
        return isinstance(text, bytes) and self._test(text, self._search) is not self._negated


# Texts as numbers, as Java's Integer.valueOf, Long.valueOf and Double.valueOf read them.

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 4_000
"""Python refuses to read more; Java would need as many zeros in front to see no overflow."""
_DOUBLE_FORM: Final = re.compile(rb"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)")
_HEX_DOUBLE_FORM: Final = re.compile(
    rb"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?", re.ASCII
)
_TRIMMED: Final = bytes(range(0x21))
"""What Java's String.trim takes off."""
_PLAIN_DIGITS_MAX: Final = 9


def _integer(text: bytes, largest: int) -> int:
    """A sign and decimal digits, of any script; no blanks."""
    if len(text) <= _PLAIN_DIGITS_MAX and text.isdigit():
        return int(text)
    characters = text.decode("utf-8", "replace")
    digits = characters[1:] if characters.startswith(("+", "-")) else characters
    # Java looks at UTF-16 units, so digits beyond the basic plane are none.
    if not digits.isdecimal() or len(digits) > _DIGITS_MAX or max(digits) > "\uffff":
        raise _ThrowsInJava
    number = int(characters)
    if not -largest - 1 <= number <= largest:
        raise _ThrowsInJava
    return number


def _double(text: bytes) -> float:
    """Decimal or hexadecimal, with exponent and suffix; blanks around it do not count."""
    text = text.strip(_TRIMMED)
    if _DOUBLE_FORM.fullmatch(text) is not None:
        return float(text.rstrip(b"fFdD"))
    if _HEX_DOUBLE_FORM.fullmatch(text) is None:
        raise _ThrowsInJava
    characters = text.decode().lower()
    try:
        return float.fromhex(characters.rstrip("fd"))
    except OverflowError:
        return -math.inf if characters.startswith("-") else math.inf


def _double_order(left: float, right: float) -> int:
    """Java's Double.compareTo: -0.0 is below 0.0, and NaN above all and equal to itself."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        if left != 0:
            return 0
        left_sign, right_sign = math.copysign(1.0, left), math.copysign(1.0, right)
        return (left_sign > right_sign) - (left_sign < right_sign)
    return math.isnan(left) - math.isnan(right)


# Tree to nodes, with what the original refuses while it builds.

_ORDERS: Final[dict[str, tuple[int, ...]]] = {
    "GREATER": (1,),
    "GREATER_EQUAL": (0, 1),
    "LESS": (-1,),
    "LESS_EQUAL": (-1, 0),
}
_TESTS: Final[dict[str, Callable[[bytes, bytes], bool]]] = {
    "CONTAINS": bytes.__contains__,
    "STARTSWITH": bytes.startswith,
    "ENDSWITH": bytes.endswith,
}
_CONSTANTS: Final[dict[str, bool | None]] = {"TRUE": True, "FALSE": False, "NULL": None}

_Part = Tree[Token] | Token


def _node(part: _Part, depth: int) -> _Node:
    if depth > _DEPTH_MAX:
        raise _Refused(f"nested deeper than {_DEPTH_MAX}", part)
    if isinstance(part, Token):
        return _leaf(part)
    depth += 1
    children = part.children
    kind = str(part.data)
    if kind in ("or", "and"):
        terms = [_condition(term, depth) for term in _terms(part)]
        return _Any(terms) if kind == "or" else _All(terms)
    if kind == "not":
        return _Not(_condition(children[1], depth))
    if kind == "negate":
        other = _node(children[0], depth)
        return other.negated() if isinstance(other, _Number) else _NegatedOther(other)
    left = _node(children[0], depth)
    if kind == "is_null":
        return _IsNull(left)
    if kind == "is_not_null":
        return _Not(_IsNull(left))
    if kind in ("equal", "not_equal"):
        equal = _equal(part, left, _node(children[1], depth))
        return equal if kind == "equal" else _Not(equal)
    if kind == "relation":
        return _relation(part, left, _node(children[2], depth), _ORDERS[_token(children[1]).type])
    words = [child for child in children[1:] if isinstance(child, Token)]
    negated = bool(words) and words[0].type == "NOT"
    if kind == "contains":
        return _Contains(left, _TESTS[words[-2].type], _text_of(words[-1]), negated=negated)
    if kind == "in":
        if not isinstance(left, _Property):
            raise _Refused("the left of IN must be a property", part)
        texts = frozenset(_text_of(word) for word in words if word.type == "TEXT")
        return _In(left, texts, negated=negated)
    low, high = _node(children[-3], depth), _node(children[-1], depth)
    if kind == "not_between":
        return _Any([_relation(part, left, low, _ORDERS["LESS"]), _relation(part, left, high, _ORDERS["GREATER"])])
    # The original compares only literals as it parses, and none with a minus.
    are_literals = isinstance(children[-3], Token) and isinstance(children[-1], Token)
    if are_literals and isinstance(low, _Number) and isinstance(high, _Number) and high.order(low) < 0:
        raise _Refused(f"BETWEEN {low.number} AND {high.number}: the first must not be the greater one", part)
    return _All(
        [
            _relation(part, left, low, _ORDERS["GREATER_EQUAL"]),
            _relation(part, left, high, _ORDERS["LESS_EQUAL"]),
        ]
    )


def _terms(part: Tree[Token]) -> list[_Part]:
    """Of a chain of ANDs or ORs, which leans to the left however long it is."""
    kind = part.data
    terms: list[_Part] = []
    rest: _Part = part
    while isinstance(rest, Tree) and rest.data == kind:
        terms.append(rest.children[2])
        rest = rest.children[0]
    terms.append(rest)
    return terms[::-1]


def _leaf(token: Token) -> _Node:
    if token.type == "PROPERTY":
        return _Property(str(token))
    if token.type == "TEXT":
        return _Text(_text_of(token))
    if token.type == "INTEGER":
        number = int(token.rstrip("lL")) if len(token) <= _DIGITS_MAX else _LONG_MAX + 1
        if number > _LONG_MAX:
            raise _Refused(f"{token[:50]} is greater than {_LONG_MAX}", token)
        return _Number(_INT if number <= _INT_MAX else _LONG, number)
    if token.type == "FLOAT":
        double = float(token)
        if double == 0 or math.isinf(double):
            raise _Refused(f"{token[:50]} is zero, or not within the range of a double", token)
        return _Number(_DOUBLE, double)
    return _Constant(_CONSTANTS[token.type])


def _condition(part: _Part, depth: int) -> _Node:
    """A part that has to be true or false; a bare property may stand for one."""
    node = _node(part, depth)
    if isinstance(node, _Condition):
        return node
    if isinstance(node, _Property):
        return _PropertyCondition(node)
    raise _Refused("a condition is needed here", part)


def _equal(part: Tree[Token], left: _Node, right: _Node) -> _Node:
    left_part, right_part = part.children
    for one in (left_part, right_part):
        if isinstance(one, Token) and one.type == "NULL":
            raise _Refused("compare with NULL by IS NULL or IS NOT NULL", one)
    if (
        isinstance(left, _Constant)
        and isinstance(right_part, Token)
        and right_part.type in ("TEXT", "INTEGER", "FLOAT")
    ):
        raise _Refused("TRUE and FALSE equal no text or number", right_part)
    return _Equal(left, right)


def _relation(part: Tree[Token], left: _Node, right: _Node, orders: tuple[int, ...]) -> _Node:
    for one in (left, right):
        if isinstance(one, (_Text, _Condition)):
            raise _Refused("only properties and numbers can be less or greater", part)
    return _Relation(left, right, orders)


def _text_of(token: Token) -> bytes:
    return token[1:-1].replace("''", "'").encode("utf-8", "replace")


def _token(part: _Part) -> Token:
    assert isinstance(part, Token)
    return part
