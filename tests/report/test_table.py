"""The final table says what was measured, with spread, reached seeds and stage-1 cost."""

import io

import pytest
import rich.console

from ssa_jax.evaluation.statistics import mean_ci95
from ssa_jax.report import table
from ssa_jax.report.run_folder import RunFolder


def test_rows_are_conditions_and_trivial_predictors(summary):
    cells = table.comparison(summary)
    assert cells.header == (
        "condition",
        "test accuracy",
        "steps to 99 % (seeds)",
        "learning rate",
        "stage-1 model-steps (time)",
    )
    assert cells.rows == (
        ("gelu", "0.500 [0.252, 0.748]", "unreached (1/3)", "0.003", "-"),
        ("learned", "0.990 [0.965, 1.000]", "200 (2/3)", "0.01", "12,000 (14.2 s)"),
        ("chance", "0.500", "-", "-", "-"),
    )


def test_other_metrics_missing_seeds_and_chosen_columns(summary):
    summary["results"] = {"ssa": {"perplexity": mean_ci95([5.0, 7.0, None]), "test_accuracy": mean_ci95([None])}}
    summary["cost"] = {}
    cells = table.comparison(summary, metrics=["perplexity"])
    assert cells.header == ("condition", "perplexity")
    assert cells.rows == (("ssa", "6 [-6.71, 18.7] (1 missing)"),)
    assert table.comparison(summary).rows[0][2] == "none (1 missing)"


def test_costs_name_every_stage(summary):
    assert table.costs(summary).rows == (("stage1", "14.2", "12,000", "3.2e+12"), ("stage2", "8", "24,000", "-"))
    assert table.costs(summary).header == ("stage", "seconds", "model-steps", "FLOPs")


def test_markdown_is_a_table(summary):
    summary["results"]["a|b"] = summary["results"].pop("chance")
    lines = table.comparison(summary).markdown().splitlines()
    assert lines[1] == "| :-- | --: | --: | --: | --: |"
    assert len(lines) == 5
    assert lines[4].startswith("| a\\|b | 0.500 |")


def test_terminal_of_80_columns_shows_a_row_a_line(summary):
    screen = rich.console.Console(file=io.StringIO(), width=80)
    screen.print(table.comparison(summary).rich(title="parity"))
    learned = next(line for line in screen.file.getvalue().splitlines() if "learned" in line)
    assert " ".join(learned.split()) == "learned 0.990 [0.965, 1.000] 200 (2/3) 0.01 12,000 (14.2 s)"


def test_summary_is_read_from_the_run_folder(finished_run, summary):
    assert table.read_summary(finished_run.path) == summary
    finished_run.write_json("summary.json", {"experiment": "x", "results": {}})
    with pytest.raises(ValueError, match="lacks verdict, cost, environment"):
        table.read_summary(RunFolder(finished_run.path))
