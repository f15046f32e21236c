"""Mutations of the pure core, made by cosmic-ray: its parser and its operators, two small ones of our own.

cosmic-ray's own runner edits the sources in place and knows no sampling by seed; ours plants in a copy, as for the
hand-picked ones. Left out are mutations of what does nothing when it runs: assertions (of our own bugs), annotations,
and the words of messages.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
from attrs import frozen
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.operators.operator import Operator

from mutants.planting import SOURCES, Mutant, Selection

CORE = SOURCES / "boundedgen" / "_core"
SELECTION = Selection(
    "core",
    (
        *(
            f"tests/core/test_{name}.py"
            for name in ("deadlines", "ready_clock", "admission", "leases", "watch", "phases", "tally")
        ),
        *(f"tests/core/test_governor{name}.py" for name in ("", "_life", "_leases", "_order")),
        *(f"tests/core/test_{name}.py" for name in ("stats", "recording", "leases_of_a_pipeline")),
        "tests/stateful",
    ),
    300.0,
    {"BOUNDEDGEN_EXAMPLES": "200"},
)
#: For each comparison the one that a tired engineer confuses it with; likewise for arithmetic.
OPERATORS = (
    *(f"ReplaceComparisonOperator_{a}" for a in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq")),
    *(f"ReplaceComparisonOperator_{a}" for a in ("Is_IsNot", "IsNot_Is")),
    *(f"ReplaceBinaryOperator_{a}" for a in ("Add_Sub", "Sub_Add", "Mul_Div", "FloorDiv_Mul")),
    *(f"ReplaceUnaryOperator_{a}" for a in ("Delete_Not", "USub_UAdd")),
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd", "NumberReplacer"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop", "AddNot"),
)

#: Nodes inside of which nothing happens that counts.
IDLE = {"assert_stmt", "fstring", "annassign", "tfpdef", "decorator"}


class DropStatement(Operator):  # type: ignore[misc,unused-ignore]
    """An assignment or a call of a function's body is left out."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type == "simple_stmt" and _does_something(node.children[0]):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        nothing = get_ast("pass\n").children[0]
        nothing.get_first_leaf().prefix = node.get_first_leaf().prefix
        return nothing

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class OtherMembership(Operator):  # type: ignore[misc,unused-ignore]
    """`in` is `not in`, and back."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type == "comparison" and node.children[1].get_code().split() in (["in"], ["not", "in"]):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        other = " not in" if node.children[1].get_code().split() == ["in"] else " in"
        node.children[1] = get_ast(other)
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


def _does_something(statement: Any) -> bool:
    """A name without its assignment would only be a NameError."""
    plain = statement.type == "expr_stmt" and statement.children[0].type == "name" and statement.children[1] == "="
    return statement.type in ("expr_stmt", "atom_expr", "del_stmt") and not plain


@frozen
class _Change:
    """The first line that differs."""

    number: int
    old: str
    new: str

    @classmethod
    def between(cls, old: str, new: str) -> _Change:
        pairs = zip(old.splitlines(), new.splitlines(), strict=False)
        number, before, after = next((i, a.strip(), b.strip()) for i, (a, b) in enumerate(pairs, 1) if a != b)
        return cls(number, before, after)


@frozen
class _Place:
    """Where an operator can change a file: the number of a node of its tree, and which change of that node."""

    path: Path
    operator: Operator
    node: int
    index: int

    def mutant(self, source: str) -> Mutant | None:
        """None: nothing differs."""
        tree = get_ast(source)
        node = next(islice(ast_nodes(tree), self.node, None))
        _replace(node, self.operator.mutate(node, self.index))
        code = tree.get_code()
        if code == source:
            return None
        file, change = str(self.path.relative_to(SOURCES / "boundedgen")), _Change.between(source, code)
        name = f"{file}:{change.number}  {change.old}  ->  {change.new}"
        return Mutant(name, file, source, code, type(self.operator).__name__, SELECTION)


def generated(folder: Path, sample: int, seed: int) -> list[Mutant]:
    """A sample of `sample` mutants, drawn by `seed`; 0: all. Those known to change nothing are left out."""
    known = _equivalents(folder / "equivalent.toml")
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(CORE.glob("*.py"))}
    places = [place for path, source in sources.items() for place in _places(path, source)]
    if sample:
        random.Random(seed).shuffle(places)
    found: dict[str, Mutant] = {}
    for place in places:
        mutant = place.mutant(sources[place.path])
        if mutant is not None and _key(mutant) not in known:
            found.setdefault(mutant.new, mutant)
        if len(found) == sample > 0:
            break
    return list(found.values())


def _equivalents(path: Path) -> set[tuple[str, str, str]]:
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["equivalent"]
    return {(row["file"], row["old"], row["new"]) for row in rows}


def _key(mutant: Mutant) -> tuple[str, str, str]:
    change = _Change.between(mutant.old, mutant.new)
    return mutant.file, change.old, change.new


def _places(path: Path, source: str) -> list[_Place]:
    theirs = [cosmic_ray.plugins.get_operator(f"core/{name}")() for name in OPERATORS]
    nodes = [(number, node) for number, node in enumerate(ast_nodes(get_ast(source))) if _runs(node)]
    return [
        _Place(path, operator, number, index)
        for operator in (*theirs, DropStatement(), OtherMembership())
        for number, node in nodes
        for index, _ in enumerate(operator.mutation_positions(node))
    ]


def _runs(node: Any) -> bool:
    around = {node.type}
    while (node := node.parent) is not None:
        around.add(node.type)
    return "funcdef" in around and not around & IDLE


def _replace(node: Any, mutated: Any) -> None:
    """cosmic-ray's operators change a node in place or return another one for it."""
    if mutated is not node:
        siblings = node.parent.children
        siblings[siblings.index(node)] = mutated
        mutated.parent = node.parent
