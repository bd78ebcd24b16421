"""`python -m tests.harness.mutants decisions tests/decisions`: mutation testing of a package by its unit tests.

All tests run once under the profiler, which records the functions that each calls. Then a process is forked for each
mutant: it replaces the code of one function, and runs the tests that call it, the fastest first, until one fails.
Modules are imported once, and no file is written. Code outside of functions is not mutated; `--seed` repeats a sample.
"""

from __future__ import annotations

import argparse
import ast
import cProfile
import functools
import gc
import os
import random
import resource
import sys
import time
import types
from collections import defaultdict
from collections.abc import Iterator
from copy import deepcopy
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings

from tests.examples import FEW

HOME = Path(__file__).parents[2]
SPARE_CPU_SECONDS = 10
"""CPU of a mutant beyond four times that of its tests: with more, it loops for ever and counts as killed."""
INVALID = 2
"""Exit code of a mutant that cannot take the place of the function."""
PAIRS = "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, And Or, Add Sub, Mult Div, FloorDiv Mult, Break Continue"
SWAPS = {getattr(ast, a): getattr(ast, b) for p in PAIRS.split(", ") for a, b in (p.split(), p.split()[::-1])}


class Mutant(NamedTuple):
    """A change of one node: `parent.field`, or its entry `index`, becomes `replacement`."""

    file: Path
    tree: ast.Module
    function: ast.FunctionDef
    parent: ast.AST
    field: str
    index: int | None
    replacement: Any

    @property
    def key(self) -> tuple[str, int]:
        """File and first line of the function, as its code has them."""
        decorators = [decorator.lineno for decorator in self.function.decorator_list]
        return str(self.file), min([self.function.lineno, *decorators])

    def apply(self) -> str:
        """Change the tree; return the lines before and after."""
        before = ast.unparse(self.function).splitlines()
        if self.index is None:
            setattr(self.parent, self.field, self.replacement)
        else:
            getattr(self.parent, self.field)[self.index] = self.replacement
        after = ast.unparse(self.function).splitlines()
        removed, added = ([line.strip() for line in a if line not in b] for a, b in ((before, after), (after, before)))
        return f"{self.file.relative_to(HOME)}:{self.function.name}: {' '.join(removed)}  ->  {' '.join(added)}"


def replacements(node: ast.AST) -> Iterator[tuple[str, int | None, Any]]:
    """Yield the mutants of a node: field, index in it, new value."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in SWAPS:
            yield "ops", 0, SWAPS[type(operator)]()
        case ast.BoolOp() | ast.BinOp() if type(node.op) in SWAPS and not isinstance(
            getattr(node, "left", None), ast.JoinedStr
        ):
            yield "op", None, SWAPS[type(node.op)]()
        case ast.Constant(value=bool()):
            yield "value", None, not node.value
        case ast.Constant(value=int() | float()):
            yield "value", None, node.value + 1
        case ast.If(test=test) | ast.IfExp(test=test):
            yield "test", None, ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
        case ast.Return(value=ast.expr()):
            yield "value", None, ast.copy_location(ast.Constant(None), node)
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            yield "func", None, ast.copy_location(ast.Name("max" if name == "min" else "min", ast.Load()), node)
    for field in ("body", "orelse"):
        for index, child in enumerate(getattr(node, field, ()) if isinstance(getattr(node, field, ()), list) else ()):
            is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if isinstance(child, (ast.Expr, ast.AugAssign)) and not is_text:
                yield field, index, ast.copy_location(ast.Pass(), child)


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Yield the mutants of all functions of a file."""
    tree = ast.parse(file.read_text())
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if not isinstance(node, ast.FunctionDef):
            todo += ast.iter_child_nodes(node)
            continue
        for parent in (node, *(child for statement in node.body for child in ast.walk(statement))):
            yield from (Mutant(file, tree, node, parent, *change) for change in replacements(parent))


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and all within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


class Mutation:
    """Plugin: runs the tests once as they are, then those of each mutant in a process of its own."""

    def __init__(self, sample: list[Mutant], seconds: float) -> None:
        """`seconds`: CPU for the tests of a mutant; the fastest count first, and more are left out."""
        self._sample, self._seconds, self._failed = sample, seconds, False
        self._callers: dict[tuple[str, int], list[tuple[float, pytest.Item]]] = defaultdict(list)
        self._functions: dict[tuple[str, int], list[types.FunctionType]] = defaultdict(list)
        self._caches: list[Any] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test failed."""
        self._failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run everything, and print the survivors."""
        for item in session.items:
            profile, start = cProfile.Profile(), time.process_time()
            profile.runcall(item.config.hook.pytest_runtest_protocol, item=item, nextitem=None)
            for entry in profile.getstats():
                if isinstance(entry.code, types.CodeType):
                    key = (entry.code.co_filename, entry.code.co_firstlineno)
                    self._callers[key].append((time.process_time() - start, item))
        if self._failed:
            pytest.exit("the tests fail without a mutant", 1)
        gc.unfreeze()
        for candidate in gc.get_objects():
            if isinstance(candidate, functools._lru_cache_wrapper):
                self._caches.append(candidate)
            elif isinstance(candidate, types.FunctionType):
                code = candidate.__code__
                self._functions[code.co_filename, code.co_firstlineno].append(candidate)
        gc.freeze()
        verdicts = [self._judge(mutant) for mutant in self._sample]
        print({verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}, flush=True)
        return True

    def _judge(self, mutant: Mutant) -> str:
        tests = sorted(self._callers[mutant.key], key=lambda test: test[0])
        ends = accumulate(seconds for seconds, _ in tests)
        tests = [test for test, end in zip(tests, ends, strict=True) if end < self._seconds]
        verdict = "no test"
        if tests:
            child = os.fork()
            if child == 0:
                code = INVALID
                try:
                    code = self._run(mutant, tests)
                finally:
                    os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            verdict = {0: "survived", 1: "killed", INVALID: "no valid code"}.get(code, "killed as an endless loop")
        if not verdict.startswith("killed"):
            print(f"{verdict}, {len(tests)} tests: {deepcopy(mutant).apply()}", flush=True)
        return verdict

    def _run(self, mutant: Mutant, tests: list[tuple[float, pytest.Item]]) -> int:
        most = int(time.process_time() + 4 * sum(seconds for seconds, _ in tests) + SPARE_CPU_SECONDS)
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        mutant.apply()
        compiled = compile(mutant.tree, str(mutant.file), "exec")
        name = mutant.function.name
        code = next(code for code in codes(compiled) if (code.co_name, code.co_firstlineno) == (name, mutant.key[1]))
        for function in self._functions[mutant.key]:
            function.__code__ = code if function.__name__ == name else function.__code__
        for cache in self._caches:
            cache.cache_clear()
        for _, item in tests:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if self._failed:
                return 1
        return 0


def main() -> int:
    """Mutate a sample of the functions of a folder or file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path)
    parser.add_argument("tests", nargs="+", help="paths and options of pytest")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    options, more = parser.parse_known_args()
    files = sorted((HOME / options.package).rglob("*.py")) or [HOME / options.package]
    everything = [mutant for file in files for mutant in mutants_of(file)]
    sample = random.Random(options.seed).sample(everything, min(options.count, len(everything)))
    print(f"{len(sample)} of {len(everything)} mutants, seed {options.seed}", flush=True)
    settings.register_profile(
        "mutants",
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        max_examples=FEW,
    )
    arguments = ["-q", "-s", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "unit", "--timeout=0"]
    return pytest.main(
        [*arguments, "--hypothesis-profile=mutants", *options.tests, *more], [Mutation(sample, options.seconds)]
    )


if __name__ == "__main__":
    sys.exit(main())
