"""A dynamic provider named in a stack's state is imported from the checkout that is running."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from decamp.errors import BadInput, DecampError

# Pulumi's provider process: its requests fail with whatever this module's `traceback.format_exc()` returns.
_PROVIDER_PROCESS = "pulumi.dynamic.__main__"


def load_provider(module_name: str, class_name: str) -> Any:
    """Returns a new instance of a provider class of infra/, imported from the checkout that is running.

    This function's name is part of every stack's state: it stays where it is.

    Args:
        module_name: e.g. `infra.teardown_guard`.
        class_name: the class in it.

    Raises:
        BadInput: the checkout has no such provider; nothing can be done to the resource with this checkout.
    """
    root = _find_checkout()
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    _show_errors_plainly()
    try:
        return getattr(importlib.import_module(module_name), class_name)()
    except (ImportError, AttributeError) as error:
        raise BadInput(
            f"{module_name}.{class_name}",
            f"this checkout cannot run what the stack's state names ({error})",
            expected=f"it below {root}",
            run="git log -- infra/  # and use the checkout the stack was made with",
        ) from error


def _find_checkout() -> Path:
    # Pulumi starts providers in the program's directory; the package's own place is for tests and library use.
    here = Path.cwd()
    for candidate in (here, here.parent, Path(__file__).resolve().parent.parent):
        if (candidate / "infra" / "dynamic.py").is_file():
            return candidate
    return Path(__file__).resolve().parent.parent


class _PlainTraceback(ModuleType):
    """Pulumi's `traceback`, except that a failure written for a user is shown as it was written."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    def format_exc(self, *args: Any, **kwargs: Any) -> str:
        error = sys.exc_info()[1]
        return str(error) if isinstance(error, DecampError) else traceback.format_exc(*args, **kwargs)


def _show_errors_plainly() -> None:
    """Keeps Python's traceback out of refusals: Pulumi shows a provider's exception as a traceback, without a choice.

    Only the name `traceback` in Pulumi's own provider process is changed; elsewhere, and for other exceptions, nothing.
    """
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if main is not None and getattr(spec, "name", "") == _PROVIDER_PROCESS:
        setattr(main, "traceback", _PlainTraceback("traceback"))  # noqa: B010 - mypy knows no such attribute
