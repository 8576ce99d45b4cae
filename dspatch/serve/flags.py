"""A command line held against what a server takes: a verdict on every word."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from dspatch.serve.answers import Answer
from dspatch.serve.commandline import Line
from dspatch.serve.engines import Facts
from dspatch.serve.environment import Environment, Variable
from dspatch.serve.option import Option
from dspatch.serve.options import Rules, Taken
from dspatch.serve.verdict import Judge, State, Verdict
from dspatch.serve.words import Given, walk


def of_variables(
    line: Line, environment: Environment, facts: Facts, judge: Judge
) -> Iterator[Verdict]:
    """A verdict on every variable in front of the command."""
    for name, value in line.assignments:
        word = f"{name}={value}"
        found = environment.variables.get(name)
        if found is not None:
            yield _variable(word, value, found, judge)
        elif name.startswith(facts.prefixes) or name in judge.answers:
            yield judge.missing(
                word, name, "environment", environment.variables, whole=environment.whole,
                what="variable",
            )  # fmt: skip
        else:
            yield Verdict(
                word=word, state="unchecked", kind="variable", say="another program's, or your own"
            )


def _variable(word: str, value: str, found: Variable, judge: Judge) -> Verdict:
    choices = [each.lower() for each in found.choices] if found.folded else list(found.choices)
    given = value.lower() if found.folded else value
    why = ""
    if choices and given not in choices:
        why = f"takes one of {', '.join(found.choices)}"
    elif found.type == "int" and value and not _is(int, value):
        why = "is read as a whole number, 0 or 1 for a switch: the start ends with ValueError"
    return Verdict(
        word=word, state="wrong" if why else "known", kind="variable", say=why,
        exists=judge.told("environment", found.name), place=found.place,
    )  # fmt: skip


def of_arguments(line: Line, taken: Taken, judge: Judge) -> Iterator[Verdict]:
    """A verdict on every option, every positional word, and every word that is too many."""
    words = walk(line.arguments, taken)
    for place, word in zip(taken.positionals, words.positionals, strict=False):
        yield Verdict(word=word, state="known", kind=place.name, place=place.place)
    yield from _lacking(line, taken, len(words.positionals))
    for given in words.given:
        yield _option(given, taken, judge)
    for word in words.extra:
        yield Verdict(
            word=word, state="unknown", kind="word",
            say="no option takes it, and there is no more room for words without one",
        )  # fmt: skip


def _lacking(line: Line, taken: Taken, found: int) -> Iterator[Verdict]:
    """Positional words that are needed and were not given; options alone may be half a command."""
    if line.program and "--config" not in line.arguments:
        for place in taken.positionals[found:]:
            if place.values in ("one", "some"):
                yield Verdict(
                    word=f"({place.name})", state="wrong", kind="word", say="is needed, and not given",
                    place=place.place,
                )  # fmt: skip


def _option(given: Given, taken: Taken, judge: Judge) -> Verdict:
    if given.how == "ambiguous":
        return Verdict(
            word=given.word, state="wrong", kind="option", values=given.values,
            say=f"may be {', '.join(given.candidates[:6])}: the parser refuses it",
        )  # fmt: skip
    option = given.option
    if option is None:
        missing = judge.missing(
            given.word, given.name, "options", taken.table, whole=taken.whole, what="option"
        )
        return _unjoined(missing, given, taken)
    why = _wrong(given, option, taken.rules) or _refused(given, taken)
    deprecated = bool(option.deprecated) or (
        given.name == "--model" and taken.rules.model == "deprecated"
    )
    state: State = "wrong" if why else "deprecated" if deprecated else "known"
    answer = judge.answers.get(option.name)
    said = why or (_advice(given, answer) if deprecated else "")
    if given.how == "abbreviated":
        said = "; ".join(each for each in (said, f"taken for {given.name}") if each)
    return Verdict(
        word=given.word, state=state, kind="option", values=given.values, say=said,
        exists=judge.told("options", given.name), place=option.place,
        instead=answer.instead if deprecated and answer is not None else (),
    )  # fmt: skip


def _refused(given: Given, taken: Taken) -> str:
    if given.name == "--model" and taken.rules.model == "refused":
        return "is refused: the model is the first word behind `serve`"
    return ""


def _advice(given: Given, answer: Answer | None) -> str:
    if answer is not None:
        return answer.say
    if given.name == "--model":
        return "the model is the first word behind `serve`"
    return "its own help calls it deprecated"


def _unjoined(missing: Verdict, given: Given, taken: Taken) -> Verdict:
    """An unknown name that is there with dashes for underscores, where the parser tells them apart."""
    dashed = given.name.replace("_", "-")
    said = missing.say
    if dashed != given.name and dashed in taken.table:
        said = f"this parser does not take `_` for `-`: {dashed}"
    return replace(missing, values=given.values, say=said)


def _wrong(given: Given, option: Option, rules: Rules) -> str:
    """What is wrong with the values of an option, in words; empty when nothing is seen."""
    if option.unread:
        return ""
    if given.short:
        return "its value is missing" if given.short == 1 else f"{given.short} values are missing"
    if given.unwanted:
        return f"takes no value, but {given.values[0]} is joined to it"
    if given.key or option.keys is not None:
        return _wrong_keys(given, option, rules)
    return next((why for value in given.values if (why := _wrong_value(value, option))), "")


def _wrong_value(value: str, option: Option) -> str:
    if option.optional and value in ("", "None"):
        return ""
    if option.type and not _is(int if option.type == "int" else float, value):
        return f"{value!r} is no {'whole number' if option.type == 'int' else 'number'}"
    if option.choices is None:
        return ""
    text = option.convert(value) if option.convert is not None else value
    if isinstance(text, str) and text not in option.choices:
        return f"{value!r} is none of {', '.join(option.choices)}"
    return ""


def _wrong_keys(given: Given, option: Option, rules: Rules) -> str:
    """Keys of a JSON object that its class has not."""
    if option.keys is None:
        return ""
    first = given.key.partition(".")[0]
    key = first.removesuffix("+") if rules.plus else first
    keys = [key] if given.key else _keys(given.values)
    if keys is None:
        return f"{given.values[0]!r} is no JSON object"
    unknown = [each for each in keys if each not in option.keys]
    return f"has no key {', '.join(unknown)}" if unknown else ""


def _keys(values: tuple[str, ...]) -> list[str] | None:
    try:
        read = json.loads(values[0]) if values else {}
    except ValueError:
        # vLLM's own spellings of a level or of sizes are not JSON, and its classes may take them.
        return None if values[0].lstrip().startswith("{") and "}" not in values[0] else []
    return list(read) if isinstance(read, dict) else []


def _is(kind: Callable[[str], object], text: str) -> bool:
    """Whether a text can be read as a value of a kind."""
    try:
        kind(text)
    except ValueError:
        return False
    return True
