"""Two processes on loopback, two devices each: the job of one host with four devices, and its numbers."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ssa_jax.report.table import read_summary

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import jax
host, hosts, port, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
jax.config.update("jax_num_cpu_devices", 4 // hosts)
if hosts > 1:
    jax.distributed.initialize(f"localhost:{port}", hosts, host)
from tests.experiments.test_two_stage import config
from ssa_jax import experiments
small = config()
small.stage1.replicas = small.stage2.replicas = 4
experiments.run(small, folder)
"""


def start(host, hosts, port, folder):
    environment = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, str(host), str(hosts), str(port), str(folder)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.slow
def test_two_hosts_give_the_numbers_of_one(tmp_path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    processes = [start(host, 2, port, tmp_path / "two") for host in range(2)] + [start(0, 1, 0, tmp_path / "one")]
    try:
        outputs = [process.communicate(timeout=300)[0].decode() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    two, one = (read_summary(tmp_path / name)["results"] for name in ("two", "one"))
    assert two.keys() == one.keys()
    for condition, measured in one.items():
        for metric, estimate in measured.items():
            assert two[condition][metric]["values"] == pytest.approx(estimate["values"], abs=1e-4)
