"""report.html is valid, holds everything, and needs nothing outside itself."""

import base64
import html.parser

import pytest

from ssa_jax.report import plots
from ssa_jax.report.html import write_report
from ssa_jax.report.run_folder import open_run

VOID = {"meta", "img", "br"}


class Page(html.parser.HTMLParser):
    """Checks that tags are nested and collects texts and pictures."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.images, self.links = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.links += [value for name, value in attrs.items() if name in ("src", "href")]
        if tag == "img":
            assert attrs["alt"]
            self.images.append(attrs["src"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data.strip())


def test_report_holds_verdict_tables_pictures_config_and_environment(finished_run):
    plots.comparison(finished_run.path / "plots" / "accuracy.png", {"gelu": [0.4, 0.5]}, "accuracy")
    plots.comparison(
        finished_run.path / "functions" / "learned-0" / "mlp_layer_0.png", {"gelu": [0.4, 0.5]}, "accuracy"
    )
    path = write_report(finished_run.path)
    page = Page(path.read_text())
    texts = " ".join(page.texts)
    assert "learned reaches 99 % where gelu <does not>" in texts
    for cell in ("0.990 [0.965, 1.000]", "unreached (1/3)", "12,000 (14.2 s)", "3.2e+12", "chance"):
        assert cell in texts
    for field in ("stage1.replicas", "devices.platform", "unknown", "learned-0/mlp layer 0"):
        assert field in texts
    assert len(page.images) == 2
    assert all(base64.b64decode(image.split(",")[1]).startswith(b"\x89PNG") for image in page.images)
    assert all(link.startswith("data:") for link in page.links)


def test_report_of_a_run_without_pictures_or_overrides(tmp_path, summary):
    run = open_run(tmp_path, {"seed": 0}, {})
    summary["verdict"] = {"parity": "confirmed", "transfer": "not shown"}
    run.write_json("summary.json", summary)
    texts = " ".join(Page(write_report(run).read_text()).texts)
    assert "parity: confirmed; transfer: not shown" in texts
    assert "Nothing was overridden" in texts


def test_no_report_without_a_summary(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_report(open_run(tmp_path, {"seed": 0}, {}))
