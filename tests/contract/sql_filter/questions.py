# ruff: noqa: E501
"""Expressions and properties whose results the original's own filter told, and how it is asked again.

    python -m contract.sql_filter.questions     (from tests/, with Maven and Java; rewrites the results beside this file)

`original_results.txt` has a line for each expression, the hand-written ones first, then the drawn ones: one letter for
each of PROPERTIES, T (true), F (false), N (null) or E (threw: not delivered), or X for an expression that is refused.
"""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
RESULTS: Final = HERE / "original_results.txt"

PROPERTIES: Final[tuple[dict[str, str], ...]] = (
    {},
    {"a": "1", "b": "2", "s": "abc", "region": "hz"},
    {"a": "1.5", "b": "x", "s": "abcabc"},
    {"a": "-3", "b": "3", "s": "it's"},
    {"a": "true", "b": "TRUE", "s": "false", "p": "5"},
    {"a": "NaN", "b": "Infinity", "s": "-Infinity"},
    {"a": " 7", "b": "7 ", "s": "中文😄", "p": "7"},
    {"a": "2147483648", "b": "-2147483649", "s": "2147483647"},
    {"a": "0x1p3", "b": "1e3", "s": "8d", "p": "10F"},
    {"a": "0", "b": "-0.0", "s": "0.0"},
    {"a": "+5", "b": "٥", "s": "x_y", "p": "5"},
    {"a": "9223372036854775808", "b": "9223372036854775807", "s": "1_000", "p": "1e999"},
    {"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": "0100", "__SHARDINGKEY": "g"},
    {"A": "1", "_u": "1", "$d": "2", "a1": "3", "b": "b", "S": "abc"},
    {"a": "5", "b": "5", "s": "a", "p": "5"},
    {"a": "4.0", "b": "10", "s": "B", "p": "-", "region": "sh"},
    {"a": ".5", "b": "5.", "s": "1e", "p": "0x10"},
    {"a": "𝟏", "b": "-", "s": "+", "p": "1L"},
)

HAND_WRITTEN: Final[tuple[str, ...]] = (
    # Comparisons of a property with a number.
    "a > 3", "a >= 5", "a < 5", "a <= 1", "a = 5", "a <> 5", "a = 1", "a <> 1", "3 < a", "5 = a", "5 <> a", "1 >= a",
    "a > 3.0", "a = 1.5", "a <> 1.5", "a = 4.0", "a = 4", "a > -3", "a = -3", "a < -2.5", "a > +3", "a = +5",
    "a > 2147483647", "a > 2147483648", "a = 2147483648", "b = -2147483649", "b > -2147483648", "s = 2147483647",
    "a = 9223372036854775807", "b = 9223372036854775807", "a = 9223372036854775808", "a > 5L", "a > 5l", "b = 5L",
    "a = 0", "a = 0.0", "b = 0.0", "b = -0.0", "b < 0.1", "s = 0.1", "p = 5", "p = 10.0", "p > 16", "p = 1",
    "a > 0.5", "a >= .5", "b = 5.", "b = 1e3", "b = 1E+3", "b > 1.5e2", "a = 8.0", "a > 7", "b > 6.5", "p > 1e308",
    "a = 1e400", "a > 4.9e-324", "a > 1e-400", "a > 5d", "a = 0L", "a = 00", "a = 01", "a = 1.5L", "a > 1.", "a > 1.e1",
    # Two properties.
    "a = b", "a <> b", "a > b", "a < b", "a >= b", "a <= b", "p = a", "x = y", "x <> y", "x > y", "a = a", "a > a",
    "a = -a", "a > -b", "-a = -b", "-a > 1", "-1 = -1", "- -5 = 5", "-(5) = -5", "-2147483648 = -2147483648",
    "a = -2147483648", "a > -2147483649",
    # Texts.
    "s = 'abc'", "s <> 'abc'", "s = 'it''s'", "s = ''''", "s = ''", "s <> ''", "s = '中文😄'", "s > 'a'", "'a' < s",
    "'abc' = s", "'abc' = 'abc'", "'a' = 'b'", "'a' <> 'b'", "s = 'ABC'", "S = 'abc'", "A = '1'", "s = '5'", "a = '5'",
    "TAGS = 'TagA'", "KEYS CONTAINS 'k1'", "UNIQ_KEY = '0100'", "UNIQ_KEY = 100", "__SHARDINGKEY = 'g'", "tags = 'TagA'",
    "_u = 1", "$d = 2", "a1 = 3", "1a = 3", "a.b = 1", "a-b = 1", "s = \"abc\"", "s = abc",
    # BETWEEN.
    "a BETWEEN 1 AND 5", "a NOT BETWEEN 1 AND 5", "a between 1.0 and 5", "a BETWEEN 5 AND 1", "a NOT BETWEEN 5 AND 1",
    "a BETWEEN -5 AND -1", "a BETWEEN -1 AND -5", "a BETWEEN b AND 10", "a BETWEEN 0 AND b", "5 BETWEEN 1 AND 10",
    "5 BETWEEN a AND b", "a BETWEEN 'a' AND 'b'", "a BETWEEN 1 AND NULL", "a BETWEEN NULL AND 1", "a BETWEEN 1 AND TRUE",
    "a BETWEEN 1 AND 1", "a BETWEEN 1 AND 1.0", "a BETWEEN 1.5 AND 1", "a BETWEEN 1 AND 5 AND b = 2",
    "a BETWEEN 1 OR 5", "a BETWEEN 1", "a BETWEEN (1) AND (5)", "a BETWEEN 1 AND 3000000000", "'a' BETWEEN 1 AND 2",
    "TRUE BETWEEN 1 AND 2", "a BETWEEN 3000000000 AND 4000000000", "NOT a BETWEEN 1 AND 5", "NOT (a BETWEEN 1 AND 5)",
    # IN.
    "s IN ('abc')", "s IN ('abc', 'a', 'B')", "s NOT IN ('abc')", "s NOT IN ('a','b','c','d','e','f')",
    "s IN ('a','b','c','d','e','abc')", "a IN ('5')", "a IN (5)", "s IN ()", "s IN ('a',)", "'a' IN ('a')", "5 IN ('5')",
    "x IN ('a')", "x NOT IN ('a')", "s IN 'a'", "(s) IN ('a')", "(s = 'a') IN ('a')", "s in ('it''s')",
    # NULL.
    "a IS NULL", "a IS NOT NULL", "x IS NULL", "x IS NOT NULL", "NOT a IS NULL", "a IS NULL IS NULL", "5 IS NULL",
    "NULL IS NULL", "NULL IS NOT NULL", "a = NULL", "a <> NULL", "NULL = a", "NULL", "NOT NULL", "a IS 5", "a IS",
    "(a > 3) IS NULL", "(a > 3) IS NOT NULL", "a IS NOT 5", "TRUE IS NULL", "-a IS NULL",
    # Booleans.
    "TRUE", "FALSE", "true", "False", "NOT TRUE", "NOT NOT TRUE", "a", "NOT a", "s", "p = TRUE", "a = TRUE", "b = true",
    "a = FALSE", "s = false", "a <> TRUE", "TRUE = a", "FALSE <> s", "TRUE = TRUE", "TRUE = FALSE", "TRUE <> FALSE",
    "TRUE = 1", "1 = TRUE", "'a' = TRUE", "TRUE = 'a'", "a > TRUE", "TRUE > a", "TRUE AND a = 5", "1", "'a'", "1.5", "-a",
    "(a = 5) = TRUE", "(a = 5) = (b = 5)", "(a = 5) <> FALSE", "a = 5 = TRUE", "a = b = TRUE", "(a = 5) > 1", "1 < (a = 5)",
    "(a) = 5", "(a) > 3", "((a)) > ((3))", "(TRUE) = (TRUE)", "-(a = 5) IS NULL", "-TRUE = 1",
    # AND, OR and NOT: three values, from left to right, and what throws on the way.
    "a > 3 AND b > 3", "a > 3 OR b > 3", "NOT a > 3", "NOT (a > 3)", "NOT a = 1", "NOT (a = 1)", "NOT a = FALSE",
    "NOT a <> TRUE", "x > 3 AND a > 3", "x > 3 OR a > 3", "a > 3 OR x > 3", "a > 3 AND x > 3", "x > 3 AND FALSE",
    "FALSE AND x > 3", "x > 3 OR TRUE", "TRUE OR x > 3", "NOT x > 3", "NOT (x > 3)", "NOT x", "s > 3 OR TRUE",
    "TRUE OR s > 3", "FALSE AND s > 3", "s > 3 AND FALSE", "a > 3 OR s = 'abc'", "s = 'abc' OR a > 3",
    "a = 1 OR a = 5 AND b = 2", "(a = 1 OR a = 5) AND b = 2", "a = 1 AND b = 2 OR b = 5", "a OR TRUE", "a AND TRUE",
    "NOT a AND TRUE", "1 OR TRUE", "TRUE AND 'a'", "NOT 1", "NOT 'a'", "NOT (1)", "a = 1 or b = 5", "not (a = 1)",
    # CONTAINS, STARTSWITH, ENDSWITH.
    "s CONTAINS 'b'", "s NOT CONTAINS 'b'", "x CONTAINS 'b'", "x NOT CONTAINS 'b'", "s CONTAINS ''", "s NOT CONTAINS ''",
    "s STARTSWITH 'ab'", "s NOT STARTSWITH 'ab'", "x STARTSWITH 'a'", "x NOT STARTSWITH 'a'", "s STARTSWITH ''",
    "s ENDSWITH 'bc'", "s NOT ENDSWITH 'bc'", "x ENDSWITH 'c'", "x NOT ENDSWITH 'c'", "s ENDSWITH ''",
    "s NOT STARTSWITH ''", "s NOT ENDSWITH ''", "NOT (x CONTAINS 'a')", "NOT x CONTAINS 'a'", "s CONTAINS b",
    "s CONTAINS 5", "'abc' CONTAINS 'b'", "'abc' NOT ENDSWITH 'b'", "5 CONTAINS '5'", "5 NOT CONTAINS '5'",
    "(a = 5) CONTAINS 'T'", "s CONTAINS '文'", "s ENDSWITH '😄'", "s CONTAINS 'a' CONTAINS 'b'", "s contains 'A'",
    "s CONTAINS 'b' = TRUE", "s CONTAINS 'b' AND s ENDSWITH 'c'", "s CONTAINS '''s'", "s LIKE 'a%'", "-s CONTAINS 'a'",
    # Chains.
    "a > 1 > 0", "a > 1 = TRUE", "a = 1 = b", "a = b > 1", "a > b = TRUE", "a > 1 BETWEEN 1 AND 2", "a IN ('5') = TRUE",
    "a = b IS NULL", "a IN ('5') IN ('5')",
    # What comes after a whole expression is not looked at, unless it is no token.
    "a = 5 b = 2", "a = 5 )", "a = 5 garbage @", "a = 5 @", "a = 5;", "a = 5 #", "(a = 5", "a = 5)(", "a = 5 AND",
    "a = 5 OR", "a = 5 NOT", "a = 5 'x", "a = 5 'x'", "a = 5 IS", "a 5", "a AND b = 5 5", "a = 5 -- rest", "a = 5 /* rest",
    "a == 5", "a != 5", "a >> 5", "a => 5", "a >< 5", "a < > 5", "a > = 5", "a = = 5",
    # Blanks, comments, letters.
    "", " ", "a=5", " a\t=\n5 ", "a = 5 -- rest\n", "-- first\na = 5", "-- first\r\na = 5", "/* x */ a = 5",
    "a /* x * y ** */ = 5", "a = /**/ 5", "a = /* 5", "a = 5 /* x */ AND b = 5", "a = 5 -- x\n AND b = 5", "a--b\n= 5",
    "a = 5\u00a0", "a\u00a0= 5", "ä = 5", "a = 5 ä", "ſ = 5", "a ıs NULL", "a iS nULL", "a bEtWeEn 1 aNd 5", "K = 5",
    "not = 5", "NOTa = 5", "and", "AND a", "in = 'a'", "is IS NULL", "contains CONTAINS 'a'", "TRUEx = 1", "a\x0b= 5",
    "a\f= 5", "a = 5AND b = 5", "a = 5LAND b = 5", "a = 5.AND b = 5", "a = 1e AND b = 5", "a = 'x'AND b = 5",
    "+ a = 5", "+ + 5 = a", "+ NOT a", "- NOT a", "+", "-", "NOT", "()", "(a", "a)", "*", "a = *", "a = ?", "a = :x",
    "a > 1 AND (b > 1 OR (s = 'a' AND NOT (p = 5)))", "a + 1 = 6", "a * 2 = 10", "a = 'x' || 'y'", "a > ALL",
)  # fmt: skip


def drawn(count: int, seed: int) -> tuple[str, ...]:
    """Expressions after the grammar, and one in eight with a token lost, doubled or exchanged."""
    chance = random.Random(seed)
    names = ("a", "b", "s", "p", "x", "region", "TAGS", "A")
    numbers = ("0", "1", "2", "3", "5", "7", "10", "-3", "- -5", "+5", "5L", "2147483648", "-2147483648", "1.5", "4.0",
               "0.0", "-0.0", "1e3", ".5", "-2.5", "9223372036854775807")  # fmt: skip
    texts = ("'abc'", "'a'", "'b'", "''", "'5'", "'it''s'", "'中文'", "'true'", "'B'")

    def operand(depth: int) -> str:
        kind = chance.random()
        if kind < 0.5:
            return chance.choice(names)
        if kind < 0.8:
            return chance.choice(numbers)
        if kind < 0.86:
            return chance.choice(texts)
        if kind < 0.9:
            return chance.choice(("TRUE", "FALSE", "NULL"))
        if kind < 0.95 or depth <= 0:
            return f"-{chance.choice(names)}"
        return f"({condition(depth - 1)})"

    def comparison(depth: int) -> str:
        name = chance.choice(names)
        negated = chance.choice(("", "NOT "))
        match chance.randrange(9):
            case 0 | 1:
                return f"{name} {chance.choice(('=', '<>', '>', '>=', '<', '<='))} {chance.choice(numbers)}"
            case 2:
                return f"{name} {chance.choice(('=', '<>'))} {chance.choice(texts)}"
            case 3:
                return f"{operand(depth)} {chance.choice(('=', '<>', '>', '>=', '<', '<='))} {operand(depth)}"
            case 4:
                return f"{name} {negated}BETWEEN {operand(0)} AND {operand(0)}"
            case 5:
                inside = ", ".join(chance.choices(texts, k=chance.randrange(1, 7)))
                return f"{name} {negated}IN ({inside})"
            case 6:
                return f"{operand(depth)} IS {negated}NULL"
            case 7:
                word = chance.choice(("CONTAINS", "STARTSWITH", "ENDSWITH"))
                return f"{operand(depth)} {negated}{word} {chance.choice(texts)}"
            case _:
                return chance.choice(("TRUE", "FALSE", name))

    def condition(depth: int) -> str:
        if depth <= 0:
            return comparison(0)
        match chance.randrange(6):
            case 0 | 1:
                return f"{condition(depth - 1)} AND {condition(depth - 1)}"
            case 2 | 3:
                return f"{condition(depth - 1)} OR {condition(depth - 1)}"
            case 4:
                return f"NOT {chance.choice(('({})', '{}')).format(condition(depth - 1))}"
            case _:
                return f"({condition(depth - 1)})" if chance.random() < 0.5 else comparison(depth)

    def broken(expression: str) -> str:
        words = expression.split(" ")
        place = chance.randrange(len(words))
        match chance.randrange(3):
            case 0:
                del words[place]
            case 1:
                words.insert(place, words[place])
            case _:
                words[place] = chance.choice(("AND", "=", "NOT", "(", ")", "a", "5", "'x'", "IS", "@"))
        return " ".join(words)

    found = []
    for number in range(count):
        expression = condition(chance.randrange(4))
        found.append(broken(expression) if number % 8 == 7 else expression)
    return tuple(found)


DRAWN: Final = drawn(1_500, seed=92)
EXPRESSIONS: Final = HAND_WRITTEN + DRAWN


def ask_the_original() -> None:
    """Rewrites the results."""
    with tempfile.TemporaryDirectory() as folder:
        questions, classpath = Path(folder, "questions.json"), Path(folder, "classpath.txt")
        questions.write_text(json.dumps({"properties": PROPERTIES, "expressions": EXPRESSIONS}))
        maven = [
            "mvn",
            "-q",
            "-f",
            str(HERE / "pom.xml"),
            "dependency:build-classpath",
            f"-Dmdep.outputFile={classpath}",
        ]
        subprocess.run(maven, check=True)
        java = ["java", "-cp", classpath.read_text().strip(), str(HERE / "OriginalFilter.java")]
        subprocess.run([*java, str(questions), str(RESULTS)], check=True)


if __name__ == "__main__":
    ask_the_original()
