"""Methods side by side, by task, time and memory: means over seeds, and lines that can be told apart."""

from codecl.report import drawing, figures
from tests.report.cases import FIRST, SECOND, write_run
from tests.report.drawn import TOGETHER, best_first, data, overlapping, run_of, runs_in


def test_the_tasks_just_after_learning_and_in_the_end(draw, tmp_path):
    write_run(tmp_path / "a", "gpm", FIRST)
    write_run(tmp_path / "b", "gpm", SECOND, seed=1)
    write_run(tmp_path / "c", "code-cl", SECOND)
    write_run(tmp_path / "d", "multitask", TOGETHER)
    figure = draw(figures.tasks, *best_first(runs_in(tmp_path)))
    after, end = figure.axes
    assert (after.get_title(), end.get_title()) == ("just after learning", "after all tasks")
    assert data(after) == {"gpm": ([1, 2], [82, 92]), "code-cl": ([1, 2], [84, 94])}  # means over seeds
    assert data(end) == {"gpm": ([1, 2], [76, 92]), "code-cl": ([1, 2], [82, 94]), "multitask": ([1, 2], [95, 97.5])}
    colours = [{line.get_label(): line.get_color() for line in axes.get_lines()} for axes in (after, end)]
    assert colours[0].items() < colours[1].items()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["multitask", "code-cl", "gpm"]
    assert after.get_ylabel() == "accuracy, %"


def test_tasks_that_were_learned_at_once_have_only_an_end(draw, tmp_path):
    figure = draw(figures.tasks, *best_first([run_of(TOGETHER, "multitask", tmp_path)]))
    assert [(axes.get_title(), data(axes)) for axes in figure.axes] == [
        ("after all tasks", {"multitask": ([1, 2], [95, 97.5])})
    ]
    assert figure.axes[0].get_ylabel() == "accuracy, %"


def test_the_average_over_the_tasks_seen_so_far(draw, tmp_path):
    write_run(tmp_path / "a", "gpm", FIRST)
    write_run(tmp_path / "b", "gpm", SECOND, seed=1)
    write_run(tmp_path / "d", "multitask", TOGETHER)
    (axes,) = draw(figures.seen, *best_first(runs_in(tmp_path))).axes
    assert data(axes) == {"multitask": ([0, 1], [96.25, 96.25]), "gpm": ([1, 2], [82, 84])}  # (80 + 84)/2, (80 + 88)/2
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("tasks seen", "average accuracy, %")


def test_acc_against_memory_and_time(draw, tmp_path):
    seconds = {"train": 100.0, "between_tasks": 15.0, "evaluate": 5.0}
    write_run(tmp_path / "a", "gpm", result={"seconds": seconds, "bytes": {"memory": 4_000_000, "per_task": 1}})
    write_run(tmp_path / "b", "gpm", seed=1, result={"bytes": {"memory": 2_000_000, "per_task": 1}})  # 75 s
    write_run(tmp_path / "c", "code-cl", SECOND, result={"bytes": {"memory": 0, "per_task": 0}})
    memory, time = draw(figures.tradeoff, *best_first(runs_in(tmp_path))).axes
    assert data(memory) == {"gpm": ([3_000_000], [80]), "code-cl": ([0], [88])}
    assert data(time) == {"gpm": ([97.5], [80]), "code-cl": ([75], [88])}
    assert [text.get_text() for text in memory.get_xticklabels()] == ["0 B", "3 MB"]
    assert [text.get_text() for text in time.get_xticklabels()] == ["1m15s", "1m38s"]
    assert draw.caption.endswith("Times depend on what else the machine did.")


def test_of_many_lines_the_best_the_baseline_and_code_cl_stand_out(draw, tmp_path):
    methods = ["owm", "gpm", "trgp", "sgp", "cuber", "code-cl", "ewc", "hat", "er", "api"]
    for i, method in enumerate(methods):
        write_run(tmp_path / method, method, [[50.0 + i, None], [50.0 + i, 50.0 + i]])
    experiments, _ = best_first(runs_in(tmp_path))
    gpm = next(e for e in experiments if e.method == "gpm")
    styles = figures.line_styles(experiments, [gpm])
    named = [e.method for e in experiments if "label" in styles[e]]
    assert named == ["api", "er", "hat", "code-cl", "gpm"]
    assert len({styles[e]["color"] for e in experiments if e.method in named}) == 5
    assert {styles[e]["color"] for e in experiments if e.method not in named} == {drawing.GREY}
    for make in (figures.seen, figures.tasks, figures.tradeoff):
        figure = draw(make, experiments, styles)
        assert [text.get_text() for text in figure.legends[0].get_texts()] == [*named, "5 others"]
    labels = [text for axes in figure.axes for text in axes.texts]
    assert {text.get_text() for text in labels} == set(methods) - set(named)
    assert overlapping(labels) == []


def test_a_method_keeps_its_colour_beside_a_better_form_of_it(tmp_path):
    write_run(tmp_path / "gpm", "gpm")
    write_run(tmp_path / "plain", "code-cl")
    _, before = best_first(runs_in(tmp_path))
    write_run(tmp_path / "changed", "code-cl", SECOND, changes={"aperture": 2.0})
    experiments, after = best_first(runs_in(tmp_path))
    colours = [{e.label(): style["color"] for e, style in styles.items()} for styles in (before, after)]
    assert experiments[0].label() == "code-cl, aperture = 2"
    assert colours[0].items() < colours[1].items()
    assert len(set(colours[1].values())) == 3
