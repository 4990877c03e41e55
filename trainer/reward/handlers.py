"""math-verify and its LaTeX reader take every exception for "not equal", those of a machine that has no memory or
no stack left too. This loads them with one handler more in each `try`, first of all, that lets those through.

Nothing else can tell: the exception is raised in C, leaves no trace where it is swallowed, and the verdict looks
like any other. Tracing would (`sys.settrace`), at two to three times the time of every comparison.
"""

import ast
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

PACKAGES = ("math_verify", "latex2sympy2_extended")
_GENERATED = "latex2sympy2_extended.gen"  # the parser's tables: slow to compile, and nothing is swallowed there
_OURS = ("MemoryError", "RecursionError")


def let_machine_errors_through() -> None:
    """In this process, of packages that are not imported yet. RuntimeError where one is already."""
    if loaded := [name for name in PACKAGES if name in sys.modules]:
        raise RuntimeError(f"{loaded[0]} is imported already: its handlers cannot be changed any more")
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES or fullname.startswith(_GENERATED):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Compiled here each time: the cached byte code has the handlers as they were written."""
        path = self.get_filename(fullname)
        return compile(add_handlers(self.get_data(path), path), path, "exec", dont_inherit=True)


def add_handlers(source: bytes, path: str) -> ast.Module:
    """The module, with `except (MemoryError, RecursionError): raise` before the handlers of every `try`."""
    tree = ast.parse(source, path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and node.handlers:
            kinds = ast.Tuple([ast.Name(name, ast.Load()) for name in _OURS], ast.Load())
            node.handlers.insert(0, ast.ExceptHandler(type=kinds, name=None, body=[ast.Raise()]))
    return ast.fix_missing_locations(tree)
