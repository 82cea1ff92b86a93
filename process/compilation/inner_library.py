"""The code of a function that compiled code alone calls: lowered once, and optimised where it is called.

numba optimises every function by itself, with all that it calls linked in, and makes machine code of it. A function six
calls down is so optimised and made machine code of six times, and five of them are used by nobody:

             numba                           here
    h        optimised, machine code         lowered
    g -> h   both once more                  lowered, and linked with h
    f -> g   all three once more             all three optimised, machine code

What this needs of numba is no public interface: a code library's names that begin with an underscore, as numba 0.68 has
them. A numba that lacks one of them compiles as it always does, to the same results.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__: list[str] = []

# numba and llvmlite have no types that say what these are.
binding: Any = import_module("llvmlite.binding")
ir: Any = import_module("llvmlite.ir")
cgutils: Any = import_module("numba.core.cgutils")
codegen: Any = import_module("numba.core.codegen")
compiler: Any = import_module("numba.core.compiler")

ENVIRONMENT = "_ZN08NumbaEnv"
"""How the names begin of the places where numba puts what a function needs of Python: what it raises, for one."""
NEEDED = (
    "_finalize_dynamic_globals",
    "_finalize_final_module",
    "_get_module_for_linking",
    "_raise_if_finalized",
    "_verify_declare_only_symbols",
)
IS_SUPPORTED = all(hasattr(codegen.JITCodeLibrary, name) for name in NEEDED)
"""Whether this numba has what is needed here."""


class InnerLibrary(codegen.JITCodeLibrary):  # type: ignore[misc]
    """Code to be linked into callers, whose machine code is the places of the environments alone: numba fills those."""

    _final_module: Any

    def finalize(self) -> None:
        """Link what is called; nothing can be added afterwards."""
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)  # noqa: SLF001
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)  # noqa: SLF001
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        whole = self._final_module
        external = [function.name for function in whole.functions if _is_external(function)]
        for name in external:  # several callers have it, and those are linked too
            whole.get_function(name).linkage = "linkonce_odr"
        self._shared_module = whole
        self._final_module = binding.parse_assembly(self._places(whole))
        self._final_module.name = whole.name
        self._finalize_final_module()

    def _places(self, whole: Any) -> str:
        """A module with the places of the environments of all that is linked."""
        module = self._codegen._create_empty_module(self.name)  # noqa: SLF001
        for name in [variable.name for variable in whole.global_variables]:
            if name.startswith(ENVIRONMENT):
                place = ir.GlobalVariable(module, cgutils.voidptr_t, name=name)
                place.linkage = "common"
                place.initializer = cgutils.get_null_value(cgutils.voidptr_t)
        text: str = cgutils.normalize_ir_text(str(module))
        return text


def _is_external(function: Any) -> bool:
    return not function.is_declaration and function.linkage == binding.Linkage.external


class InnerCompiler(compiler.CompilerBase):  # type: ignore[misc]
    """numba's compiler, for a function whose code is an `InnerLibrary`."""

    def define_pipelines(self) -> list[Any]:
        """Give numba's own passes; they find the library there."""
        state = self.state
        state.library = InnerLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return [compiler.DefaultPassBuilder.define_nopython_pipeline(state)]
