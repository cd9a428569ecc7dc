"""The command line: help, lists, one line for every mistake, progress for people and for programs."""

import inspect
import json

import pytest
import torch

import codecl as package
from codecl.benchmarks.registry import BENCHMARKS
from codecl.cli import main as cli
from codecl.cli import run
from codecl.cli.methods import meanings_of
from codecl.methods import METHODS, Method
from tests.runs.running import SMALL, codecl, epochs_of, log_of, result_of

FILES = {
    "not.toml": "method = ",
    "list.toml": "[[training]]\nlr = 1\n",
    "unknown.toml": "aperature = 3\n",
    "section.toml": "[trainings]\nlr = 0.1\n",
    "training.toml": "training = 3\n",
    "field.toml": "[training]\nlearning_rate = 0.1\n",
    "setting.toml": "[settings]\napertur = 3.0\n",
    "epochs.toml": '[training]\nepochs = "many"\n',
    "method.toml": "method = 3\n",
    "seed.toml": 'seed = "zero"\n',
    "half.toml": "seed = 0.5\n",
    "threads.toml": 'threads = "all"\n',
    "tasks.toml": "tasks = 0\n",
    "quick.toml": 'quick = "yes"\n',
    "device.toml": 'device = "tpu"\n',
    "number.toml": "device = 1\n",
    "preset.toml": 'preset = ["paper"]\n',
    "data.toml": '[data]\norder = "1"\n',
    "binary.toml": b"\xff\xfe\x00",
    "deep.toml": f"[settings]\naperture = {'[' * 5000}{']' * 5000}\n",
    "benchmark.toml": 'benchmark = "evil:B"\n',
    "digits.toml": f"seed = {'9' * 5000}\n",
}

MISTAKES = [
    # options
    ("run --sede 1", "--sede"),
    ("rnu", "rnu"),
    ("", "COMMAND"),
    ("run --seed one", "one"),
    ("run --seed", "expected one argument"),
    ("run a.toml b.toml", "b.toml"),
    ("run --device gpu", "gpu"),
    ("run --device cuda", "'cuda' is not available"),
    ("run --tasks 0", "tasks must be 1 or more"),
    ("run --tasks 6", "permuted-digits has 5 tasks"),
    ("run --epochs 0", "--epochs must be 1 or more"),
    ("run --threads -1", "threads must be 1 or more"),
    ("run --threads 99999999999", "at most 1024"),
    ("run --seed 99999999999999999999", "seed must be a whole number of 64 bits; got 99999999999999999999."),
    ("run --track papyrus", "no tracker 'papyrus'"),
    ("methods --all", "--all"),
    ("compare --jobs 0", "--jobs must be 1 or more"),
    ("compare --jobs two", "two"),
    ("compare --seeds 0,x", "whole numbers with commas; got '0,x'"),
    ("compare --seeds 1,,2", "whole numbers"),
    ("compare --methods ,", "--methods takes names"),
    ("compare --methods finetune,gmp", "no method 'gmp'. Did you mean 'gpm'?"),
    ("sweep", "nothing to vary"),
    ("sweep --vary aperture", "--vary takes name=value,value,…; got 'aperture'"),
    ("sweep --vary =1,2", "--vary takes name=value,value,…; got '=1,2'"),
    ("sweep --vary aperture=", "has an empty value"),
    ("sweep --vary aperture=1,,2", "--vary aperture=1,,2 has an empty value"),
    ("sweep --vary aperture=[1", "--vary aperture=[1: give all values as TOML"),
    ("sweep --vary aperture=1 --vary aperture=2", "--vary aperture is given twice"),
    ("sweep --vary apertur=1,2", "no hyperparameter of code-cl 'apertur'. Did you mean 'aperture'?"),
    ("sweep --vary seed=1,2", "no hyperparameter of code-cl 'seed'"),
    ("sweep --vary aperture=1,-2", "aperture"),
    ("sweep --vary free_dims=20,2.5", "free_dims must be a whole number"),
    ("sweep --vary epochs=2,3 --quick", "leave out --quick and --epochs"),
    ("sweep --vary epochs=2,3 --epochs 4", "leave out --quick and --epochs"),
    ("sweep --vary training.epochs=2,3 --epochs 4", "leave out --quick and --epochs"),
    ("sweep --set lr=0.1 --vary training.lr=0.1,0.2", "training.lr is given twice, as lr and as training.lr"),
    ("sweep --vary aperture=1 --method gmp", "no method 'gmp'"),
    ("sweep --vary aperture=1 --method gpm", "no hyperparameter of gpm 'aperture'"),
    ("sweep --vary aperture=1 --seeds x", "whole numbers with commas"),
    ("sweep --vary aperture=1 --jobs 0", "--jobs must be 1 or more"),
    ("sweep --vary aperture=1 --out file", "cannot be a run directory"),
    ("inspect", "RUN"),
    ("inspect nowhere", "nowhere is not a run directory: it has no recipe.toml"),
    ("inspect folder", "folder is not a run directory"),
    ("inspect file", "file is not a run directory"),
    ("inspect folder --task first", "invalid int value"),
    ("inspect nowhere --task", "expected one argument"),
    ("export", "RUN"),
    ("export nowhere --out a.pt2", "nowhere is not a run directory: it has no recipe.toml"),
    ("export folder --out a.pt2", "folder is not a run directory"),
    ("export folder", "say where to write: --out FILE or --hub-folder DIR."),
    ("export folder --task two --out a.pt2", "invalid int value"),
    ("export unfinished --out a.pt2", "the run is not finished. To go on: codecl run --resume unfinished"),
    ("export foreign --out a.pt2", "If you trust it, add --trust."),
    ("run --resume foreign", "names the method 'evil:Method', whose code would be run"),
    ("run --resume foreign --dry-run", "If you trust it, add --trust."),
    ("run foreign/recipe.toml", "If you trust it, add --trust."),
    ("run foreign/recipe.toml --trust", "No module named 'evil'"),
    ("run benchmark.toml", "names the benchmark 'evil:B'"),
    ("run --accept weather", "invalid choice: 'weather'"),
    ("run --accept", "expected one argument"),
    ("compare --baseline gmp", "no baseline among the methods compared 'gmp'. Did you mean 'gpm'?"),
    ("compare --methods finetune,code-cl --baseline gpm", "Known: 'finetune', 'code-cl'."),
    ("compare --methods finetune,finetun", "Did you mean 'finetune'?"),
    ("compare --seeds 0.5", "whole numbers with commas; got '0.5'"),
    ("compare --seeds 99999999999999999999", "seed must be a whole number of 64 bits"),
    ("compare --jobs -1", "--jobs must be 1 or more; got -1."),
    ("compare --track papyrus", "no tracker 'papyrus'. Known: 'tensorboard', 'mlflow', 'wandb'."),
    ("compare --set nothing=1", "no hyperparameter of finetune 'nothing'"),
    ("compare --tasks 0", "tasks must be 1 or more"),
    ("compare --tasks 9", "permuted-digits has 5 tasks; got tasks = 9."),
    ("compare --epochs -2", "--epochs must be 1 or more; got -2."),
    ("compare --quick --epochs 16", "--quick is at most 15 epochs a task, not 16"),
    ("compare --out folder/thesis.tex", "cannot be a run directory: "),
    ("sweep --vary lr=0.1 --track papyrus", "no tracker 'papyrus'"),
    ("sweep --vary lr=0.1,fast", "lr must be a finite number; got 'fast'"),
    ("sweep --vary lr=[0.1],word", "give all values as TOML"),
    ("sweep --vary before=previous,late", "before must be 'previous' or 'shared'; got 'late'."),
    ("sweep --vary rule=luck", "rule must be "),
    ("sweep --grid", "nothing to vary"),
    ("report", "DIR"),
    ("report nowhere", "there is no directory nowhere"),
    ("report file", "file is no directory"),
    ("report folder", "folder"),
    ("memory --inputs 0", "N must be 1 or more; got 0."),
    ("memory --tasks many", "invalid int value: 'many'"),
    ("memory --free 5000", "K counts directions of N = 1024 inputs; got 5000."),
    ("data", "ACTION"),
    ("data look", "invalid choice"),
    ("data check cifar1000 --data-dir folder", "no data set 'cifar1000'. Did you mean 'cifar100'?"),
    ("data check --data-dir nowhere", "there is no folder nowhere"),
    ("data get minst", "no data set 'minst'. Did you mean 'mnist'?"),
    ("methods gmp", "no method 'gmp'. Did you mean "),
    ("methods code-cl --preset papper", "no preset 'papper'. Did you mean 'paper'?"),
    ("methods nowhere:M", "No module named 'nowhere'"),
    ("benchmarks all", "unrecognized arguments: all"),
    ("inspect unfinished --task 1", "unfinished has learned no task yet; there is no task 1 to inspect."),
    ("watch", "DIR"),
    ("watch nowhere", "there is no directory nowhere."),
    ("watch file", "file is no directory."),
    ("watch . --every 0", "--every takes seconds from 0.1 to 3600; got 0."),
    ("sweep --vary aperture=1 --on mars", "--on takes local, slurm, ray, or ray://HOST:PORT; got 'mars'."),
    ("sweep --search aperture", "--search takes name=low..high, two numbers in order; got 'aperture'."),
    ("sweep --search aperture=9..1", "two numbers in order; got 'aperture=9..1'."),
    ("sweep --search apertur=1..3", "Did you mean 'aperture'?"),
    ("sweep --search free_dims=1.5..3", "free_dims is a whole number, and so are the ends of its range."),
    ("sweep --search aperture=-3..3", "aperture must be a finite number above 0; got -3.0."),
    ("sweep --search overlap=0.5..2", "overlap must be a ratio of capacities in [0, 1]; got 2.0."),
    ("sweep --search aperture=1..3 --trials 0", "--trials must be 1 or more; got 0."),
    ("sweep --search aperture=1..3 --jobs 2", "--search runs one trial at a time"),
    ("sweep --search aperture=1..3 --search aperture=2..3", "--search aperture is given twice."),
    ("sweep --search aperture=1..3 --track papyrus", "no tracker 'papyrus'"),
    ("data check cifar100 mnis --data-dir folder", "no data set 'mnis'. Did you mean 'mnist'?"),
    ("data get --data-dir folder cifar1000", "Did you mean 'cifar100'?"),
    # names
    ("run --method code_cl", "Did you mean 'code-cl'?"),
    ("run --method fintune", "Did you mean 'finetune'?"),
    ("run --benchmark permuted-digit", "Did you mean 'permuted-digits'?"),
    ("run --preset offical", "Did you mean 'official'?"),
    ("run --track wandbb", "Did you mean 'wandb'?"),
    ("run --method nowhere:Method", "No module named 'nowhere'"),
    ("run --method codecl:Nothing", "Nothing"),
    ("run --method codecl:Conceptor", "not a subclass of codecl.Method"),
    ("run --method :Method", "cannot be imported"),
    ("run --method .a:Method", "cannot be imported"),
    ("run --method broken:Method", "SyntaxError"),
    # hyperparameters
    ('run --set closed=["nolayer"]', "closed: there is no weight 'nolayer'. Known: 'backbone.hidden.0.weight'"),
    ("run --set overlap=2", "overlap must be a ratio of capacities in [0, 1]; got 2."),
    ("run --method cuber --set trust=5", "trust must be"),
    ("run --set momentum=2", "momentum must be a number, 0 or more, below 1; got 2."),
    ("run --set samples=0", "samples must be a positive number of inputs, or None for all; got 0."),
    ("run --set aperture={nolayer=4}", "nolayer"),
    ("run --method gpm --set threshold=2", "threshold must be a share in (0, 1]; got 2."),
    ("run --set optimizer=adamm", "optimizer must be 'sgd', 'adam' or 'adamw'; got 'adamm'."),
    ("run --set optimizer=adam --set momentum=0.9", "momentum and nesterov belong to sgd"),
    ("run --set precision=fp8", "precision must be 'float32', 'bf16' or 'fp16'; got 'fp8'."),
    ("run --set workers=-1", "workers must not be negative; got -1."),
    ("run --set weight_decay=-1", "weight_decay must not be negative; got -1."),
    ("run --evaluate sometimes", "evaluate must be 'all', 'last' or 'every:N', N above 0; got 'sometimes'."),
    ("run --set apertur=8", "Did you mean 'aperture'?"),
    ("run --set aperture", "name=value"),
    ("run --set aperture=8 --set aperture=16", "--set aperture is given twice: 8 and 16. Leave one out."),
    ("compare --set samples=none --set samples=8", "--set samples is given twice: none and 8. Leave one out."),
    ("run --set lr=0.1 --set training.lr=0.2", "training.lr is given twice, as lr and as training.lr: leave one out."),
    ("run --epochs 3 --set epochs=4", "--epochs and --set epochs say the same: leave one out."),
    ("run --evaluate last --set training.evaluate=all", "--evaluate and --set evaluate say the same: leave one out."),
    ("run --set =8", "name=value"),
    ("run --set seed=3", "no hyperparameter of code-cl 'seed'"),
    ("run --method finetune --set aperture=8", "no hyperparameter of finetune 'aperture'"),
    ("run --set aperture=big", "settings: aperture must be a finite number or a table; got 'big'."),
    ("run --set aperture={a=1,b='x'}", "settings: aperture.b must be a finite number; got 'x'."),
    ("run --set aperture=[1,2]", "aperture must be a finite number or a table; got [1, 2]."),
    ("run --set aperture=inf", "aperture must be a finite number or a table; got inf."),
    ("run --set aperture=true", "aperture must be a finite number or a table; got True."),
    ("run --set aperture=none", "aperture must be a finite number or a table; got None."),
    ("run --set overlap=most", "overlap must be a finite number; got 'most'."),
    ("run --set before=later", "before must be 'previous' or 'shared'; got 'later'."),
    ("run --set closed=[1]", "settings: closed[0] must be text; got 1."),
    ("run --set closed=conv", "closed must be a list; got 'conv'."),
    ("run --set smallest=2.5", "smallest must be a whole number or none; got 2.5."),
    ("run --set free_dims=none", "free_dims must be a whole number; got None."),
    ("run --set free_dims=-3", "free_dims"),
    ("run --set replace=1", "replace must be true or false; got 1."),
    ("run --set hold=none", "hold must be true or false; got None."),
    ("run --set bias=5", "bias must be 'freeze' or"),
    ("run --set own_share=half", "own_share must be a finite number or none; got 'half'."),
    ("run --method gpm --set threshold=high", "threshold must be a finite number or a table; got 'high'."),
    ("run --method gpm --set first_rule=under", "first_rule must be 'reach' or 'below'; got 'under'."),
    ("run --method gpm --set images=many", "images must be a whole number or a table or none; got 'many'."),
    ("run --method ewc --set fisher=median", "fisher must be 'mean' or 'sum' or 'online'; got 'median'."),
    ("run --method ewc --set clip=tight", "clip must be a finite number or none; got 'tight'."),
    ("run --method er --set memory=2.5", "memory must be a whole number; got 2.5."),
    ("run --method er --set every_epoch=often", "every_epoch must be true or false; got 'often'."),
    ("run --method hat --set smax=big", "smax must be a finite number; got 'big'."),
    ("run --method a-gem --set reference=few", "reference must be a whole number; got 'few'."),
    ("run --method owm --set update=daily", "update must be 'batch' or 'task'; got 'daily'."),
    ("run --method trgp --set gate=open", "gate must be 'layer' or 'first'; got 'open'."),
    ("run --method api --set warm_up=0.5", "api has 'warm_up' twice: say training.warm_up or settings.warm_up."),
    ("run --method api --set settings.warm_up=0.5", "warm_up must be a whole number; got 0.5."),
    ("run --method cuber --set strength=weak", "strength must be a finite number; got 'weak'."),
    ("run --method dfgp --set swapped=maybe", "swapped must be true or false; got 'maybe'."),
    ("run --benchmark split-cifar100 --set split_seed=7", "no choice of split_seed '7'. Known: '0', 'run'."),
    ("run --quick --epochs 30", "--quick is at most 15 epochs a task, not 30: leave one of the two out."),
    ("run --quick --set epochs=30", "--quick is at most 15 epochs a task, not 30"),
    ("run --quick --set training.epochs=30", "--quick is at most 15 epochs a task, not 30"),
    ("run --set aperture=-1", "aperture"),
    ("run --set aperture=nan", "aperture"),
    ("run --set free_dims=2.5", "free_dims must be a whole number"),
    ("run --set samples=1.5", "samples must be a whole number"),
    ("run --set closed=5", "closed must be a list"),
    ("run --set replace=perhaps", "replace must be true or false"),
    ("run --set norm=banana", "norm must be 'freeze' or"),
    ("run --set overlap=2020-01-01", "settings: overlap must be a finite number; got datetime.date"),
    ("run --set epochs=many", "epochs must be a whole number; got 'many'"),
    ("run --set epochs=1.5", "epochs must be a whole number; got 1.5"),
    ("run --set epochs=inf", "epochs must be a whole number; got inf"),
    ("run --set epochs=true", "epochs must be a whole number; got True"),
    ("run --set epochs=-3", "epochs must not be negative; got -3"),
    (f"run --set epochs={'9' * 5000}", "--set epochs: it has a whole number of more than 64 bits."),
    (f"run --set closed={'[' * 5000}{']' * 5000}", "--set closed: it is nested more than 64 levels deep."),
    ("run --set batch_size=0", "batch_size must be above 0"),
    ("run --set batch_size=32.0", "batch_size must be a whole number"),
    ("run --set evaluation_batch=0", "evaluation_batch must be above 0"),
    ("run --set lr=0", "lr must be above 0"),
    ("run --set lr=inf", "lr must be a finite number"),
    ("run --set lr=nan", "lr must be a finite number"),
    ("run --set lr=", "lr must be a finite number; got ''"),
    ("run --set rule=luck", "'loss', 'accuracy' or 'annealed'; got 'luck'"),
    ("run --set patience=0", "patience"),
    ("run --set factor=1", "factor"),
    ("run --set min_lr=0", "min_lr must be above 0"),
    ("run --set rule=accuracy --set decay=1", "decay"),
    ("run --set momentum=-0.1", "momentum"),
    # files and directories
    ("run nowhere.toml", "no recipe file nowhere.toml"),
    ("run folder", "folder is a directory, not a recipe. To go on with the run in it: codecl run --resume folder"),
    ("run --out file", "file cannot be a run directory"),
    ("run --out file/below", "cannot be a run directory"),
    ("run --out folder", "not empty and not a run directory"),
    ("compare --out file", "cannot be a run directory"),
    ("run --resume nowhere", "nowhere is not a run directory"),
    ("run --resume folder", "folder is not a run directory"),
    ("run --resume folder --seed 0", "leave out seed"),
    ("run nowhere.toml --resume folder", "leave out recipe"),
    ("run not.toml", "not.toml is not a recipe"),
    ("run list.toml", "training must be a table"),
    ("run unknown.toml", "no field 'aperature'"),
    ("run section.toml", "no field 'trainings'. Did you mean 'training'?"),
    ("run training.toml", "training must be a table; got 3"),
    ("run field.toml", "[training]: there is no field 'learning_rate'"),
    ("run setting.toml", "[settings]: there is no field 'apertur'. Did you mean 'aperture'?"),
    ("run epochs.toml", "epochs must be a whole number; got 'many'"),
    ("run method.toml", "method must be text; got 3"),
    ("run seed.toml", "seed must be a whole number; got 'zero'"),
    ("run half.toml", "seed must be a whole number; got 0.5"),
    ("run threads.toml", "threads must be a whole number; got 'all'"),
    ("run tasks.toml", "tasks must be 1 or more"),
    ("run quick.toml", "quick must be true or false; got 'yes'"),
    ("run device.toml", "'tpu' is not available"),
    ("run number.toml", "1 is not available"),
    ("run preset.toml", "preset must be text"),
    ("run data.toml", "[data]: there is no field 'order'"),
    ("run binary.toml", "binary.toml is not a recipe: it is not UTF-8: byte 0 is 0xff."),
    ("run deep.toml", "deep.toml is not a recipe: it is nested more than 64 levels deep."),
    ("run digits.toml", "digits.toml is not a recipe: it has a whole number of more than 64 bits."),
]


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A directory with all kinds of wrong files."""
    for name, text in FILES.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    for name, text in {"unfinished": "", "foreign": 'method = "evil:Method"\n'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").write_text(text)
    (tmp_path / "broken.py").write_text("class Method(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("command", "says"), MISTAKES, ids=[command[:60] or "nothing" for command, _ in MISTAKES])
def test_every_mistake_is_one_line_and_exit_code_2(command, says, there, capsys):
    before = {str(path) for path in there.rglob("*") if "__pycache__" not in str(path)}
    code, out, err = codecl(capsys, *command.split())
    assert code == 2, err
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert err.startswith("codecl")
    assert says in err
    assert "Traceback" not in err
    assert {str(path) for path in there.rglob("*") if "__pycache__" not in str(path)} == before


@pytest.mark.parametrize(
    "command", [[], ["run"], ["compare"], ["sweep"], ["inspect"], ["methods"], ["benchmarks"]], ids=str
)
def test_every_command_has_help(command, capsys):
    code, out, err = codecl(capsys, *command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: codecl")
    if command in (["run"], ["compare"], ["sweep"], ["inspect"]):
        examples = out[out.index("examples:") :].splitlines()[1:]
        assert len(examples) >= 3
        assert all(line.startswith(f"  codecl {command[0]}") for line in examples)


def test_the_examples_of_the_help_are_commands_that_parse(capsys):
    for command in ("run", "compare", "sweep", "inspect"):
        _, out, _ = codecl(capsys, command, "--help")
        for line in out[out.index("examples:") :].splitlines()[1:]:
            words = line.split("   ")[0].split(">")[0].split()[1:]
            cli.build_parser().parse_args(words)


def test_the_version(capsys):
    assert codecl(capsys, "--version") == (0, f"codecl {package.__version__}\n", "")


def test_at_least_150_mistakes_are_tried():
    assert len({command for command, _ in MISTAKES}) == len(MISTAKES) >= 150


def test_a_page_on_a_method_says_what_each_hyperparameter_means(capsys):
    code, out, err = codecl(capsys, "methods", "code-cl")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    at = lines.index("  free_dims = 80")
    assert lines[at + 1 : at + 3] == [
        "      K: how many shared directions are freed",
        "      paper: 20 on permuted-digits",
    ]
    official = codecl(capsys, "methods", "code-cl", "--preset", "official")[1].splitlines()
    at = official.index("  replace = false")
    assert official[at + 2] == f"      official: true on {', '.join(BENCHMARKS)}"


@pytest.mark.parametrize("name", METHODS)
def test_every_hyperparameter_of_every_method_is_described(name, capsys):
    assert "not described" not in codecl(capsys, "methods", name)[1]


@pytest.mark.parametrize("name", METHODS)
def test_meanings_are_found_in_docstrings_with_and_without_their_indentation(name):
    """Python 3.13 takes it off when it compiles a class."""
    bare = inspect.cleandoc(METHODS[name].__doc__)
    ours, theirs = (
        meanings_of(type("Same", (Method,), {"__doc__": doc})) for doc in (bare, bare.replace("\n", "\n    "))
    )
    assert ours == theirs


def test_all_known_names_are_told(capsys):
    err = codecl(capsys, "run", "--method", "none-of-them")[2]
    assert all(repr(name) in err for name in METHODS)


@pytest.mark.parametrize("word", ["none", "None", "NONE"])
def test_none_is_none_however_it_is_written(word, capsys):
    assert '\nsamples = "none"\n' in codecl(capsys, "run", "--set", f"samples={word}", "--dry-run")[1]


def test_methods_are_listed_with_their_hyperparameters(capsys):
    code, out, _ = codecl(capsys, "methods")
    assert code == 0
    names = [line for line in out.splitlines() if not line.startswith(" ")]
    assert names == list(METHODS)
    assert "aperture=6.0, " in out
    assert "free_dims=80, overlap=0.5" in out


def test_benchmarks_are_listed(capsys):
    code, out, _ = codecl(capsys, "benchmarks")
    assert code == 0
    for name, benchmark in BENCHMARKS.items():
        assert name in out
        assert benchmark.summary in out


def test_a_run_shows_its_progress_and_where_it_wrote(tmp_path, capsys):
    path = tmp_path / "run"
    code, out, err = codecl(capsys, "run", *SMALL, "--out", path)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split("  ")[:2] for line in lines[:2]] == [["task 1/2", "epoch 1/2"], ["task 1/2", "epoch 2/2"]]
    A = result_of(path)["accuracy"]
    assert lines[2] == f"after task 1/2: {A[0][0]:5.1f}   mean {A[0][0]:.1f}"
    assert lines[5] == f"after task 2/2: {A[1][0]:5.1f} {A[1][1]:5.1f}   mean {(A[1][0] + A[1][1]) / 2:.1f}"
    assert f"ACC {result_of(path)['acc']:.2f} %, BWT {result_of(path)['bwt']:+.2f} %" in lines[6]
    assert f"{path}/result.json" in lines[-1]
    assert "\r" not in out


def test_quiet_shows_the_result_alone(tmp_path, capsys):
    code, out, err = codecl(capsys, "run", *SMALL, "--out", tmp_path / "run", "--quiet")
    assert (code, err) == (0, "")
    assert out.startswith("code-cl on permuted-digits, seed 0: ACC")
    assert out.count("\n") == 3


def test_quiet_does_not_hide_a_damaged_checkpoint(tmp_path, capsys):
    path = tmp_path / "run"
    assert codecl(capsys, "run", *SMALL, "--out", path, "--quiet", "--set", "lr=999999")[0] == 1
    (path / "task-000.ckpt").write_bytes(b"?")
    _, _, err = codecl(capsys, "run", "--resume", path, "--quiet")
    assert "task-000.ckpt" in err.splitlines()[0]
    assert "no checkpoint in" in err.splitlines()[1]


def test_json_is_one_event_a_line_and_the_result(tmp_path, capsys):
    path = tmp_path / "run"
    code, out, err = codecl(capsys, "run", *SMALL, "--out", path, "--json")
    assert (code, err) == (0, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[:-1] == log_of(path)
    assert lines[-1] == {"result": result_of(path)}
    again = codecl(capsys, "run", "--resume", path, "--json")
    assert again == (0, json.dumps({"result": result_of(path)}) + "\n", "")


def test_a_run_has_a_directory_by_default(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert codecl(capsys, "run", *SMALL, "--method", "finetune", "--seed", "5", "--quiet")[0] == 0
    assert result_of("runs/permuted-digits/finetune-seed5")["seed"] == 5


def test_a_recipe_file_and_the_options_give_the_same_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, recipe, _ = codecl(capsys, "run", *SMALL, "--seed", "2", "--dry-run")
    (tmp_path / "r.toml").write_text(recipe)
    assert codecl(capsys, "run", *SMALL, "--seed", "2", "--out", "a", "--quiet")[0] == 0
    assert codecl(capsys, "run", "r.toml", "--out", "b", "--quiet")[0] == 0
    assert result_of("a")["accuracy"] == result_of("b")["accuracy"]
    assert epochs_of("a") == epochs_of("b")
    assert (tmp_path / "a" / "recipe.toml").read_text() == (tmp_path / "b" / "recipe.toml").read_text() == recipe


def test_an_aperture_for_every_layer(tmp_path, capsys):
    path, change = tmp_path / "run", 'aperture={"*hidden.0*"=4.0,"*"=8.0}'
    assert codecl(capsys, "run", *SMALL, "--set", change, "--out", path, "--quiet")[0] == 0
    assert result_of(path)["settings"]["aperture"] == {"*hidden.0*": 4.0, "*": 8.0}
    assert codecl(capsys, "run", "--resume", path)[0] == 0


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(False, False, "cpu"), (True, True, "cuda"), (False, True, "mps"), (True, False, "cuda")],
)
def test_the_automatic_device_is_the_best_there_is(cuda, mps, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert f'device = "{expected}"' in codecl(capsys, "run", "--device", "auto", "--dry-run")[1]
    (tmp_path / "r.toml").write_text('device = "auto"\n')
    assert f'device = "{expected}"' in codecl(capsys, "run", tmp_path / "r.toml", "--dry-run")[1]
    assert f'device = "{expected}"' in codecl(capsys, "run", "--dry-run")[1]  # the default
    assert 'device = "cpu"' in codecl(capsys, "run", "--device", "cpu", "--dry-run")[1]


def test_a_run_for_a_device_that_is_not_here_cannot_be_resumed(tmp_path, capsys):
    recipe = codecl(capsys, "run", "--dry-run")[1].replace('device = "cpu"', 'device = "cuda"')
    (tmp_path / "recipe.toml").write_text(recipe)
    code, _, err = codecl(capsys, "run", "--resume", tmp_path)
    assert code == 2
    assert "'cuda' is not available here" in err


def test_interruption_is_said_in_one_line(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run", interrupted)
    code, _, err = codecl(capsys, "run", "--out", tmp_path / "run")
    assert code == 130
    assert err == "codecl: stopped. What was computed is kept; the same command again goes on.\n"
