"""What each room may import; and no module anywhere turns bytes into code."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.import_graph import Layers, Package, import_statements

ROOT = Path(__file__).parents[1]
ROOMS = {
    "wire": ROOT / "protos" / "atoll" / "wire",
    "settings": ROOT / "common" / "atoll" / "settings",
    "processes": ROOT / "common" / "atoll" / "processes",
    "accounting": ROOT / "common" / "atoll" / "accounting",
    "text": ROOT / "common" / "atoll" / "text",
    "formats": ROOT / "common" / "atoll" / "formats",
    "statistics": ROOT / "common" / "atoll" / "statistics",
    "client": ROOT / "client" / "atoll" / "client",
    "server": ROOT / "server" / "atoll" / "server",
    "operator": ROOT / "server" / "atoll" / "operator",
    "console": ROOT / "server" / "atoll" / "console",
    "simulation": ROOT / "server" / "atoll" / "simulation",
    "datacenter": ROOT / "datacenter" / "atoll" / "datacenter",
}
NEVER = {
    "wire": {"torch"},
    "settings": {"torch"},
    "processes": {"numpy", "torch"},
    "accounting": {"torch", "opacus"},
    "text": {"numpy", "torch"},
    "formats": {"torch"},
    "statistics": {"torch", "scipy", "pandas"},
    "client": {"torch", "opacus"},
    "server": {"torch"},
    "operator": {
        *("torch", "numba", "scipy", "sqlalchemy", "matplotlib", "click", "rich"),
        *("mlflow", "pandas", "pyarrow", "tensorboard"),
        *("atoll.server.runs", "atoll.server.stores", "atoll.server.cli"),
    },
    "console": {
        *("torch", "numba", "scipy", "sqlalchemy", "matplotlib", "rich"),
        *("atoll.server.runs", "atoll.server.stores", "atoll.server.report"),
    },
    "simulation": {"torch"},
    "datacenter": set(),
}
"""What importing the modules of a room must not load; for other rooms see ``MAY_IMPORT``."""
LAYERS: dict[str, Layers] = {
    "server": (
        ("errors", "threads", "__init__"),
        ("aggregation", "disk", "rounds", "sampling"),
        ("buckets", "control"),
        ("jobs", "report"),
        ("identity",),
        ("stores",),
        ("ingest",),
        ("privacy",),
        ("telemetry",),
        ("config",),
        ("access",),
        ("runs",),
        ("backup",),
        ("rpc",),
        ("gateway",),
        ("process",),
        ("aggregator", "demo", "privacy_audit"),
        ("cli",),
    ),
    "operator": (
        ("errors", "html"),
        ("choosing", "completing", "job_options", "naming", "paging", "run_job", "tables"),
        ("provider", "sign_in"),
        ("chosen_project",),
        ("comparison", "connecting", "signing_in", "table_files"),
        ("calls", "history"),
        ("following", "ledger", "models", "notebook", "statistics"),
        (
            *("exports", "initial_weights", "server_audit", "server_ledger", "server_operators"),
            *("server_participants", "server_projects", "server_tokens", "variants"),
        ),
        ("run",),
        ("operator",),
        ("__init__",),
    ),
    "console": (
        ("charts", "connections", "paging", "sessions", "site"),
        ("guard", "live", "reading", "round_view", "run_view"),
        ("forms", "templating"),
        ("actions", "by_project", "entering", "handlers", "ledger_pages"),
        ("app",),
        ("serving",),
        ("__init__", "cli"),
    ),
    "simulation": (
        ("collector", "errors", "inline", "result", "seeds"),
        ("sessions", "spool", "temporary", "threads", "workers"),
        (
            "batching",
            "data",
            "evaluating",
            "gpus",
            "initial",
            "participant_objects",
            "population",
            "progress",
            "tasks",
            "update_sums",
            "virtual_time",
        ),
        ("behaviour", "frames"),
        ("attendance", "parallel_runs"),
        ("resuming",),
        ("simulated_server", "task_runner"),
        ("worker_pool", "worker_process"),
        ("task_queue",),
        ("cluster", "handing_in", "worker_link"),
        ("process_pool", "virtual_participants"),
        ("playing",),
        ("federation",),
        ("sweeping",),
        ("__init__", "cli"),
    ),
    "client": (
        ("_clock", "errors", "limits", "model"),
        ("_state", "_study", "control", "scores", "settings"),
        ("_connection", "task"),
        ("_telemetry", "_transfer", "events", "privacy_demand", "update"),
        ("_privacy", "participant"),
        ("_statistics",),
        ("continuous", "local_privacy"),
        ("policy",),
        ("_session",),
        ("_fake_rounds", "participate"),
        ("cli", "testing", "torch"),
        ("demo", "in_process", "opacus", "silo", "torch_batched", "torch_personal"),
        ("__init__",),
    ),
    "datacenter": (
        ("errors", "durable", "torch_version"),
        ("job",),
        ("mesh", "sizing"),
        ("models",),
        ("compression", "data", "machine"),
        ("metrics", "parallel"),
        ("checkpoint", "privacy"),
        ("checks",),
        ("elastic", "plan", "scaling"),
        ("train",),
        ("federation", "fit"),
        ("demo",),
        ("cli",),
        ("__init__",),
    ),
}
"""The sub-rooms of a room, lowest first: each imports only from layers below its own. ``docs/architecture.md`` has the
same order, from the top to the bottom."""
PURE: dict[str, tuple[str, ...]] = {
    "wire": ("",),
    "accounting": ("",),
    "server": ("aggregation", "control", "errors", "report", "rounds", "sampling"),
    "operator": (
        *("choosing", "completing", "html", "job_options", "naming", "paging", "run_job", "statistics", "tables"),
        "variants",
    ),
    "console": ("charts", "paging", "round_view", "run_view", "sessions", "site"),
    "simulation": ("errors", "frames", "seeds"),
    "client": (
        *("_statistics", "control", "errors", "events", "limits", "local_privacy", "model", "participant", "policy"),
        *("privacy_demand", "scores", "settings", "task", "update"),
    ),
    "datacenter": ("plan", "sizing", "torch_version"),
}
"""Sub-rooms that compute and do no I/O: their input is arguments, their output is what they return. "" is a room."""
DOES_IO = {
    *("asyncio", "http", "mmap", "multiprocessing", "os", "pathlib", "select", "selectors", "shutil", "signal"),
    *("socket", "sqlite3", "ssl", "subprocess", "tempfile", "urllib.request"),
    *("grpc", "sqlalchemy", "prometheus_client", "opentelemetry"),
    *("atoll.server.disk", "atoll.server.stores"),
}
MAY_IMPORT: dict[str, set[str]] = {
    "wire": set(),
    "settings": set(),
    "processes": set(),
    "accounting": set(),
    "text": set(),
    "formats": {"wire"},
    "statistics": {"wire"},
    "client": {"accounting", "formats", "processes", "statistics", "text", "wire"},
    "server": {"accounting", "formats", "operator", "processes", "settings", "statistics", "text", "wire"},
    "operator": {"formats", "server", "settings", "statistics", "text", "wire"},
    "console": {"operator", "server", "text", "wire"},
    "simulation": {"client", "formats", "operator", "processes", "server", "settings", "statistics", "text", "wire"},
    "datacenter": {"accounting", "client", "formats", "processes", "settings", "text", "wire"},
}
"""The other rooms that a room imports: exactly these. ``docs/architecture.md`` has the same list. Arrows point one way,
except that the server's commands are built on ``operator``, which reads the server's pure sub-rooms."""
ADAPTERS = {
    "atoll.client.torch",
    "atoll.client.torch_batched",
    "atoll.client.torch_personal",
    "atoll.client.opacus",
    "atoll.client._telemetry.otel",
    "atoll.datacenter.demo.participant",
    "atoll.simulation.cluster.actor",
    "atoll.simulation.cluster.connection",
    "atoll.simulation.cluster.ray_actors",
    "atoll.simulation.cluster.link",
    "atoll.simulation.cluster.node",
    "atoll.simulation.cluster.pool",
    "atoll.simulation.cluster.records",
}
"""Optional parts of a room, for users who have the library; nothing else of the room may load them."""
NOT_IMPORTABLE = {"atoll.server.stores.migrations.env"}
"""Run by Alembic inside a migration."""

WIRE_MAY_LOAD = {"numpy", "protobuf", "cryptography", "blake3"}
BASE = {"numpy", "grpcio", "protobuf", "cryptography"}
MAX_FURTHER = 2
BROUGHT_ALONG = {"cffi", "pycparser", "typing-extensions", "typing_extensions", "atoll"}
"""What the base dependencies need themselves."""
BROUGHT_ALONG |= {"grpcio-health-checking", "grpcio-reflection", "grpcio-status", "grpcio-tools"}
"""What ``import grpc`` loads by itself where it is installed."""

BROUGHT_BY_PYDANTIC = {"pydantic-core", "pydantic_core", "annotated-types", "typing-inspection"}

PROBE = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted(sys.modules)))
"""

PICKLING = {
    "pickle",
    "_pickle",
    "cPickle",
    "shelve",
    "marshal",
    "dill",
    "cloudpickle",
    "joblib",
    "jsonpickle",
    "copyreg",
}
PICKLING |= {"multiprocessing", "concurrent.futures.process", "xmlrpc"}
PICKLING_NAMES = {"ProcessPoolExecutor", "read_pickle", "to_pickle"}
HARMLESS = {"multiprocessing.shared_memory"}
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}


def modules_of(room: str) -> list[str]:
    """Every module of a room by its import name."""
    folder = ROOMS[room]
    names = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parents[1]).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in names if name not in NOT_IMPORTABLE and not name.endswith("__main__")]


def loaded_by(modules: list[str]) -> set[str]:
    """Names of all modules that a fresh process holds after it has imported these."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(modules)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def within(modules: set[str], packages: set[str]) -> set[str]:
    """Return the modules that are one of the packages or lie inside one."""
    return {name for name in modules if any(name == package or name.startswith(f"{package}.") for package in packages)}


@cache
def installed() -> tuple[Mapping[str, list[str]], set[str]]:
    """Distributions by the packages that they install, and what a process holds that has imported nothing."""
    return packages_distributions(), loaded_by([])


def foreign(modules: list[str], allowed: set[str]) -> set[str]:
    """Third-party packages that importing these modules loads, and that none of the allowed distributions has."""
    known, before = installed()
    tops = {name.partition(".")[0] for name in loaded_by(modules) - before}
    return {top for top in tops if top in known and not allowed & {name.lower() for name in known[top]}}


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_of_a_room_loads_what_the_room_must_never_import(room: str) -> None:
    modules = [name for name in modules_of(room) if name not in ADAPTERS]
    assert modules
    assert within(loaded_by(modules), NEVER[room] | ADAPTERS) == set()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_exactly_the_rooms_that_it_may(room: str) -> None:
    found = {other for name in imported_in(ROOMS[room]) for other in ROOMS if name.startswith(f"atoll.{other}.")}
    assert found - {room} == MAY_IMPORT[room]


def test_the_rooms_are_all_there_are() -> None:
    folders = {path for parent in ROOT.glob("*/atoll") for path in parent.iterdir() if path.is_dir()}
    assert {path for path in folders if path.name != "__pycache__"} == set(ROOMS.values())


def test_the_architecture_page_lists_the_rooms_and_what_each_imports() -> None:
    section = page_section("## Packages", "\n### ")
    rows = re.findall(r"^\| `(\S+)` → `atoll\.(\w+)` \|.*\| ([^|]*) \|$", section, flags=re.MULTILINE)
    assert {name: ROOT / folder for folder, name, _ in rows} == ROOMS
    assert {name: set(re.findall(r"`(\w+)`", others)) for _, name, others in rows} == MAY_IMPORT


@pytest.mark.parametrize("room", LAYERS)
def test_sub_rooms_import_only_from_the_layers_below(room: str) -> None:
    package, layers = Package.at(ROOMS[room]), LAYERS[room]
    named = [name for layer in layers for name in layer]
    assert sorted(named) == sorted(package.sub_rooms)
    assert package.against(layers) == []


def test_other_rooms_import_only_public_modules_of_the_client() -> None:
    """A module of the client is private if its name, or that of a folder above it, begins with an underscore."""
    names = {name for room in ROOMS if room != "client" for name in imported_in(ROOMS[room])}
    assert {name for name in names if name.startswith("atoll.client.") and "._" in name} == set()


def imported_in(folder: Path) -> set[str]:
    """The full names that the modules in a folder import, even within functions and under ``TYPE_CHECKING``."""
    paths = sorted(folder.rglob("*.py"))
    return {name for path in paths for node in import_statements(path) for name in imported_by(node)}


def imported_by(node: ast.AST) -> list[str]:
    """The full names that an import statement names; none for another node."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names):
            return [f"{module}.{alias.name}" for alias in names]
    return []


@pytest.mark.parametrize(("room", "sub_room"), [(room, name) for room, names in PURE.items() for name in names])
def test_what_computes_does_no_io(room: str, sub_room: str) -> None:
    place = ROOMS[room] / sub_room
    paths = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    assert paths
    assert [found for path in paths if "_pb2" not in path.name for found in io_of(path)] == []


@pytest.mark.parametrize(
    "text", ["import os.path", "from pathlib import Path", "from atoll.server.stores import Blob", "open('x')"]
)
def test_io_is_found(tmp_path: Path, text: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"def late():\n    {text}\n", encoding="utf-8")
    assert len(list(io_of(path))) == 1


def io_of(path: Path) -> Iterator[str]:
    """What in a file can do I/O, as ``file:line what``. Types that only annotations name do none."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found = within({alias.name for alias in names}, DOES_IO)
            case ast.ImportFrom(module=str(module), names=names):
                imported = {f"{module}.{alias.name}" for alias in names}
                found = within({module}, DOES_IO) or within(imported, DOES_IO)
            case ast.Call(func=ast.Name(id="open")):
                found = {"open"}
            case _:
                continue
        yield from (f"{path.name}:{node.lineno} {name}" for name in sorted(found))


@pytest.mark.parametrize("room", ROOMS)
def test_no_modules_of_a_room_import_each_other_in_a_circle(room: str) -> None:
    assert Package.at(ROOMS[room]).cycle() == []


@pytest.mark.parametrize("room", LAYERS)
def test_the_architecture_page_lists_the_sub_rooms_in_their_order(room: str) -> None:
    """Cells of the first column name folders of one layer or of neighbouring ones, the lowest first."""
    section = page_section(f"### The layers of `{room}`", "\n#")
    cells = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    listed = [name for cell in cells for name in re.findall(r"`(\w+)(?:/|\.py)`", cell)]
    height = {name: number for number, layer in enumerate(LAYERS[room]) for name in layer}
    assert sorted(listed) == sorted(height.keys() - {"__init__"})
    assert [height[name] for name in listed] == sorted(height[name] for name in listed)


@pytest.mark.parametrize("room", LAYERS)
def test_the_architecture_page_calls_pure_what_does_no_io(room: str) -> None:
    """A row has one kind for all its sub-rooms, or one for each."""
    section = page_section(f"### The layers of `{room}`", "\n#")
    pure = set()
    for cell, kind in re.findall(r"^\| (`.*?) \|.*\| ([^|]*) \|$", section, flags=re.MULTILINE):
        names = re.findall(r"`(\w+)(?:/|\.py)`", cell)
        kinds = kind.split("; ")
        kinds = kinds * len(names) if len(kinds) == 1 else kinds
        pure |= {name for name, its in zip(names, kinds, strict=True) if its == "pure"}
    assert pure == set(PURE.get(room, ()))


def page_section(heading: str, end: str) -> str:
    """The text of the architecture page from below a heading to the next ``end``."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return text.partition(f"\n{heading}\n")[2].partition(end)[0]


@pytest.mark.parametrize(
    "text",
    [
        "from atoll.room.high import thing",
        "import atoll.room.high.inner",
        "from atoll.room import high",
        "from ..high import thing",
        "def late():\n    from atoll.room.high.inner import thing",
        "if TYPE_CHECKING:\n    from atoll.room.high import thing",
        "from atoll.room.beside import thing",
    ],
)
def test_an_import_against_the_order_is_found(tmp_path: Path, text: str) -> None:
    package = write_room(tmp_path, {"low/module.py": text})
    assert len(package.against((("low", "beside"), ("high",), ("__init__",)))) == 1


def test_an_import_in_the_order_is_let_pass(tmp_path: Path) -> None:
    package = write_room(
        tmp_path, {"high/inner.py": "from atoll.room.low import module\nfrom atoll.room.low.module import x"}
    )
    assert package.against((("low", "beside"), ("high",), ("__init__",))) == []
    assert package.cycle() == []


def test_a_circle_inside_one_sub_room_is_found(tmp_path: Path) -> None:
    circle = {"low/module.py": "from atoll.room.low import other", "low/other.py": "import atoll.room.low.module"}
    assert set(write_room(tmp_path, circle).cycle()) == {"atoll.room.low.module", "atoll.room.low.other"}


def write_room(folder: Path, texts: dict[str, str]) -> Package:
    """A package ``atoll.room`` with sub-rooms ``low``, ``beside`` and ``high``, empty but for these modules."""
    room = folder / "atoll" / "room"
    empty = ["", "low/", "beside/", "high/"]
    files = {f"{name}__init__.py": "" for name in empty} | {"low/module.py": "", "high/inner.py": ""} | texts
    for name, text in files.items():
        path = room / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Package.at(room)


def test_the_wire_loads_only_what_both_sides_must_have() -> None:
    """gRPC itself is needed by the generated service stubs alone."""
    plain = [name for name in modules_of("wire") if not name.endswith("_pb2_grpc")]
    assert foreign(plain, WIRE_MAY_LOAD | BROUGHT_ALONG) == set()
    assert foreign(modules_of("wire"), WIRE_MAY_LOAD | BROUGHT_ALONG | {"grpcio"}) == set()


def test_the_account_loads_numpy_alone_until_it_is_asked() -> None:
    assert foreign(modules_of("accounting"), {"numpy"} | BROUGHT_ALONG) == set()


def test_the_client_loads_only_what_its_base_installation_brings() -> None:
    modules = [name for name in modules_of("client") if name not in ADAPTERS]
    assert foreign(modules, base_dependencies() | BROUGHT_ALONG) == set()


def test_the_operators_room_loads_only_what_its_extra_brings() -> None:
    allowed = base_dependencies() | extra("operator") | BROUGHT_ALONG | BROUGHT_BY_PYDANTIC
    assert foreign(modules_of("operator"), allowed) == set()


def test_the_console_loads_only_what_its_extra_brings() -> None:
    brought = {"anyio", "h11", "idna", "markupsafe", *BROUGHT_BY_PYDANTIC}
    allowed = base_dependencies() | extra("console") | BROUGHT_ALONG | brought
    assert foreign(modules_of("console"), allowed) == set()


def test_only_the_servers_commands_use_the_operators_room() -> None:
    users = {
        place.name
        for place in ROOMS["server"].iterdir()
        if any(name.startswith("atoll.operator.") for name in imported_in(place))
    }
    assert users == {"cli"}


def extra(name: str) -> set[str]:
    """Names of what an extra brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = project["optional-dependencies"][name]
    return {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower() for requirement in listed}


def test_base_dependencies_are_four_and_at_most_two_more() -> None:
    found = base_dependencies()
    assert found >= BASE
    assert len(found - BASE) <= MAX_FURTHER


def base_dependencies() -> set[str]:
    """Names of what ``pip install atoll`` brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower() for requirement in project["dependencies"]}


def sources() -> Iterator[Path]:
    """Every Python file of the rooms and of the examples that users start from."""
    for folder in (*ROOMS.values(), ROOT / "examples"):
        yield from sorted(folder.rglob("*.py"))


def test_nothing_unpickles_or_runs_text() -> None:
    """On every path of server, client and wire: what crosses is tensors and typed values, nothing that can run."""
    paths = list(sources())
    assert len(paths) > 100
    assert [problem for path in paths for problem in dangers(path)] == []


def dangers(path: Path) -> list[str]:
    """What in a file could turn bytes into code, as ``file:line what``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [(node, what) for node in ast.walk(tree) for what in danger_of(node)]
    return [f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} {what}" for node, what in found]


def danger_of(node: ast.AST) -> Iterator[str]:
    """What is wrong with one node."""
    match node:
        case ast.Import(names=names):
            yield from (f"imports {alias.name}" for alias in names if pickles(alias.name))
        case ast.ImportFrom(module=str(module), names=names):
            for alias in names:
                if alias.name in PICKLING_NAMES or (pickles(module) and pickles(f"{module}.{alias.name}")):
                    yield f"imports {alias.name} from {module}"
        case ast.Attribute(attr=name) if name in PICKLING_NAMES:
            yield f"uses {name}"
        case ast.Call(func=ast.Name(id=name)) if name in RUNS_TEXT:
            yield f"calls {name}"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load"), keywords=keywords):
            if not any(keyword.arg == "weights_only" and is_constant(keyword.value, True) for keyword in keywords):
                yield "calls torch.load without weights_only=True"
        case ast.keyword(arg="allow_pickle", value=value) if not is_constant(value, False):
            yield "allows pickle"


def pickles(module: str) -> bool:
    """Whether a module is one of those that pickle, or lies inside one."""
    return bool(within({module}, PICKLING)) and not within({module}, HARMLESS)


def is_constant(node: ast.expr, value: object) -> bool:
    """Whether an expression is literally this value."""
    return isinstance(node, ast.Constant) and node.value is value


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "import os, marshal",
        "from multiprocessing import Pool",
        "from concurrent.futures import ProcessPoolExecutor",
        "import multiprocessing.connection",
        "numpy.load(path, allow_pickle=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "eval(text)",
        "pandas.read_pickle(path)",
    ],
)
def test_the_search_finds(text: str) -> None:
    assert [what for node in ast.walk(ast.parse(text)) for what in danger_of(node)]


@pytest.mark.parametrize(
    "text",
    [
        "from multiprocessing import shared_memory",
        "from concurrent.futures import ThreadPoolExecutor",
        "numpy.load(path, allow_pickle=False)",
        "torch.load(path, weights_only=True)",
        "re.compile(pattern)",
        "model.eval()",
    ],
)
def test_the_search_lets_pass(text: str) -> None:
    assert not [what for node in ast.walk(ast.parse(text)) for what in danger_of(node)]


PLACES = re.compile(
    r"(?<![\w./])/(?:home|Users|root|work|workspace|mnt|private)/\w"  # a path of one machine
    r"|(?<![\w./])/tmp/\w"
    r"|--?(?:extra-)?index-url|https?://[\w.-]*(?:pypi|pythonhosted|npmjs|artifactory|nexus|registry)[\w.-]*"
)
"""Absolute paths of one machine, and addresses of package registries."""


def test_no_tracked_file_names_a_machines_path_or_a_package_registry() -> None:
    listed = subprocess.run(("git", "ls-files", "-z"), cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S607  # the developer's own git
    if listed.returncode != 0:
        pytest.skip("not a git checkout: nothing is tracked")
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path == Path(__file__) or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            found += [f"{name}:{number} {place.group()}" for place in PLACES.finditer(line)]
    assert found == []
