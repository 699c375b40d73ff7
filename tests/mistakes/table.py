"""Mistakes that newcomers make, each in a new study: what is changed in its files, and the command that meets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SIMULATE = "simulate job.toml --participants participant.py:Site --population 3"
STATISTICS = "simulate statistics.toml --participants participant.py:Site --population 3"
START = "client start participant.py:Site --state state"
FIT = "return Update({"
"""Where ``fit`` of the study in numpy ends."""


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        area: of the surface.
        what: in the words of the person who makes it.
        command: after ``atoll``; SERVER, DATA, TOKEN and USED stand for a running server's.
        edits: by file, what is replaced and by what; what is not there is appended to a file, or makes a new one.
        names: what the message must contain: the value that is wrong.
    """

    area: str
    what: str
    command: str
    names: str
    edits: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def _job(what: str, names: str, old: str, new: str, command: str = SIMULATE) -> Mistake:
    return Mistake("job file", what, command, names, {"job.toml": (old, new)})


def _code(what: str, names: str, old: str, new: str, command: str = SIMULATE) -> Mistake:
    return Mistake("participant's code", what, command, names, {"participant.py": (old, new)})


def _rows(what: str, names: str, file: str, old: str, new: str) -> Mistake:
    return Mistake("data and statistics", what, STATISTICS, names, {file: (old, new)})


PRIVACY = '\n[privacy]\npopulation = "wards"\nepsilon = 8.0\ndelta = 1e-5\nclip = 1.0\n'
PLAN = "privacy plan job.toml"


def _private(what: str, names: str, old: str, new: str, sections: str = PRIVACY) -> Mistake:
    return Mistake(
        "privacy", what, PLAN, names, {"job.toml": ("", sections.replace(old, new) if old else sections + new)}
    )


MISTAKES = (
    Mistake("commands", "a command is mistyped", "simulte job.toml", "simulte"),
    Mistake("commands", "a command of a group is mistyped", "run sumbit job.toml", "sumbit"),
    Mistake("commands", "an option is mistyped", f"{SIMULATE} --worker 2", "--worker"),
    Mistake("commands", "the study's framework is left out", "new study other", "--framework"),
    Mistake("commands", "the study's framework is unknown", "new study other --framework jax", "jax"),
    Mistake("commands", "a study has a name with a space", "new study 'ward 7' --framework numpy", "ward 7"),
    Mistake("commands", "a study is made where one is", "new study . --framework numpy", "participant.py"),
    Mistake("commands", "the job file's name is mistyped", SIMULATE.replace("job", "jbo"), "jbo.toml"),
    Mistake("commands", "the participants are left out", "simulate job.toml --population 3", "--participants"),
    Mistake("commands", "the population is a word", SIMULATE.replace(" 3", " three"), "three"),
    Mistake("commands", "the population is smaller than the cohort", SIMULATE.replace(" 3", " 2"), "2"),
    Mistake("commands", "the class is left out", SIMULATE.replace(":Site", ""), "participant.py"),
    Mistake("commands", "the class is mistyped", SIMULATE.replace(":Site", ":Sites"), "Sites"),
    Mistake("commands", "the module is mistyped", SIMULATE.replace("participant.py", "particpant.py"), "particpant.py"),
    Mistake("commands", "the results go to a file", f"{SIMULATE} -o job.toml", "job.toml"),
    Mistake("commands", "a value is set for a key that no job has", f"{SIMULATE} --set cohort.sise=3", "cohort.sise"),
    _job("a key is mistyped", "sise", "size = 3", "sise = 3"),
    _job("a section is mistyped", "cohorts", "[cohort]", "[cohorts]"),
    _job("a number is written as text", '"20"', "rounds = 20", 'rounds = "20"'),
    _job("no round is asked for", "0", "rounds = 20", "rounds = 0"),
    _job("a quotation mark is missing", "job.toml", 'name = "wards"', "name = wards"),
    _job("the initial model does not exist", "first.safetensors", "initial.safetensors", "first.safetensors"),
    _job("there is no initial model", "model", '[model]\ninitial = "initial.safetensors"', ""),
    _job("the quorum is larger than the cohort", "quorum", "size = 3", "size = 3\nquorum = 4"),
    _job("a training setting is in [job]", "lr", "rounds = 20", "rounds = 20\nlr = 0.1"),
    _job("the metric has no source", "loss", '"eval/loss"', '"loss"'),
    _job("the best value is the 'lowest'", "lowest", '"min"', '"lowest"'),
    _job("whether a low or a high value is the best is left out", "mode", 'mode = "min"\n', ""),
    _job(
        "early stopping has no patience",
        "patience",
        "[training]",
        '[stop]\nmetric = "eval/loss"\nmode = "min"\n\n[training]',
    ),
    _job("the optimiser is unknown", "adam", "[training]", '[optimiser]\nname = "adam"\n\n[training]'),
    _job("the best metric is never measured", "eval/auk", '"eval/loss"', '"eval/auk"'),
    _job(
        "the server's evaluator is not there", "holdout", "[training]", '[evaluation]\nserver = "holdout"\n\n[training]'
    ),
    _code("a bracket is missing", "participant.py", "initial_model())", "initial_model("),
    _code("a package is not installed", "pandsa", "import numpy as np", "import numpy as np\nimport pandsa"),
    _code("fit is mistyped", "fit", "def fit", "def fitt"),
    _code("the class is no Participant", "Site", "class Site(Participant)", "class Site", START),
    _code("the data file does not exist", "ward.csv", "    rng = np", '    np.loadtxt("ward.csv")\n    rng = np'),
    _code("fit returns the weights alone", "dict", FIT, 'return {"weight": weight}\n        return Update({'),
    _code(
        "fit returns other names",
        "weights",
        FIT,
        'return Update({"weights": weight}, weight=1)\n        return Update({',
    ),
    _code(
        "fit returns another shape",
        "[1, 3]",
        FIT,
        'return Update({"weight": weight[None], "bias": bias}, weight=1)\n        return Update({',
    ),
    _code("fit returns NaN", "nan", FIT, "weight[0] = np.nan\n        return Update({"),
    _code("fit counts more rows than there are", "1000", "weight=self.examples)", "weight=1000)"),
    _code(
        "a metric is a text", "low", FIT, 'return Update({"weight": weight, "bias": bias}, None, 1, {"loss": "low"})#'
    ),
    _code("evaluate returns a number", "float", "metrics = {", "return 0.5\n        metrics = {"),
    _code("a site has no rows to train on", "0", "self.examples = len(self.train)", "self.examples = 0"),
    _code("training diverges", "weight", "SPREAD\n        held", "1e-9\n        held"),
    Mistake("participant's code", "a setting is a text", f"{SIMULATE} --set training.lr=fast", "fast"),
    Mistake("participant's code", "an argument is no number", f"{START} --arg site=three", "three"),
    Mistake("participant's code", "an argument is mistyped", f"{START} --arg sites=3", "sites"),
    _rows("a column is not in the table", "age of", "statistics.toml", '"age"', '"age of patient"'),
    _rows("a column of numbers holds text", "age", "participant.py", "self.features.T", "[['old'] * 250] * 3"),
    _rows("the columns differ in length", "label", "participant.py", "np.array(LABELS)[self.labels]}", "[1, 2]}"),
    _rows("a site has too few rows", "10", "participant.py", "size=(250", "size=(7"),
    _rows("the sites give no table", "table", "participant.py", "def table", "def tabel"),
    _rows("two sites are too few for statistics", "2", "statistics.toml", "size = 3", "size = 2"),
    Mistake(
        "data and statistics", "a training job is asked for statistics", "stats job.toml --data DATA", "statistics"
    ),
    _private(
        "noise and epsilon are both given", "noise_multiplier", "epsilon = 8.0", "epsilon = 8.0\nnoise_multiplier = 1.0"
    ),
    _private("delta is not small", "0.1", "1e-5", "0.1"),
    _private("the clip norm is left out", "clip", "clip = 1.0\n", ""),
    _private("the best metric comes from the participants", "eval/loss", "", ""),
    Mistake("privacy", "a job without [privacy] is planned", PLAN, "privacy"),
    Mistake(
        "privacy",
        "a policy has a mistyped key",
        f"{START} --policy policy.toml",
        "min_cohorts",
        {"policy.toml": ("", "min_cohorts = 3\n")},
    ),
    Mistake("tokens and addresses", "there is no join token", START, "state"),
    Mistake("tokens and addresses", "the token's file is mistyped", f"{START} --join @token.txt", "token.txt"),
    Mistake(
        "tokens and addresses",
        "the token's file has three",
        f"{START} --join @t.txt",
        "t.txt",
        {"t.txt": ("", "a\nb\nc\n")},
    ),
    Mistake("tokens and addresses", "the token is cut off", f"{START} --join atoll-join-1.abc", "16 characters"),
    Mistake("tokens and addresses", "the token was used before", f"{START} --join USED", "token"),
    Mistake("tokens and addresses", "no credential is there", "run list --data federation", "federation"),
    Mistake("tokens and addresses", "the address has no port", "run list --data DATA --server localhost", "localhost"),
    Mistake(
        "tokens and addresses",
        "plain text to another machine",
        "run list --insecure --server fl.example.org:7400",
        "fl.example.org",
    ),
    Mistake(
        "tokens and addresses",
        "a name without TLS has another form",
        f"{START} --insecure --server 127.0.0.1:7400 --participant ward7",
        "ward7",
    ),
    Mistake("tokens and addresses", "a lifetime has no unit", "token new --data DATA --expires 5", "5"),
    Mistake("tokens and addresses", "tokens would replace a file", "token new --data DATA -o job.toml", "job.toml"),
    Mistake("runs", "a run does not exist", "run show rabc --data DATA", "rabc"),
    Mistake("runs", "there is no run yet", "run model latest --data DATA -o model.safetensors", "run"),
    Mistake("runs", "a run that does not exist is extended", "run extend rabc --rounds 20 --data DATA", "rabc"),
    Mistake("runs", "a run is extended by no round", "run extend latest --rounds 0 --data DATA", "0"),
    Mistake("server", "the port is in use", "server start --data other --port PORT", "SERVER"),
    Mistake("server", "the evaluator has no function", "server start --data other --evaluator quality", "quality"),
    Mistake(
        "server",
        "the evaluator's module does not exist",
        "server start --data other --port 0 --evaluator q=gone:q",
        "gone",
    ),
    Mistake(
        "server",
        "a setting of the server is mistyped",
        "server start --config server.toml",
        "prot",
        {"server.toml": ("", "prot = 7400\n")},
    ),
    Mistake(
        "server",
        "the URL of the bucket holds its credentials",
        "server start --config server.toml",
        "storage.blobs",
        {"server.toml": ("", '[storage]\nblobs = "s3://AKIA123:wJalrX@models/ward"\n')},
    ),
    Mistake(
        "server",
        "the bucket is named without its scheme",
        "server migrate --data DATA --blobs models/ward",
        "'models/ward'",
    ),
    Mistake("server", "a move names nothing to move", "server migrate --data DATA", "--blobs"),
)
