"""Stands for ssh, srun or mpirun, by the name it is called: starts commands in namespaces, and writes down its words.

FAKE_HOSTS has what each host is: `10.77.0.1=NAMESPACE ...`, in order; `down=ADDRESS` is one that cannot be reached.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KNOWN = dict(word.split("=") for word in os.environ["FAKE_HOSTS"].split())
TASKS = {
    "srun": lambda node: {"SLURM_STEP_ID": "0", "SLURM_PROCID": str(node), "SLURM_STEP_TASKS_PER_NODE": "1(x2)"},
    "mpirun": lambda node: {"OMPI_COMM_WORLD_RANK": str(node), "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
}


def within(host: str, words: list[str], **variables: str) -> subprocess.Popen[bytes]:
    name = KNOWN[host]
    become = ["unshare", "--uts", "sh", "-c", f'hostname {name.rpartition("-")[2]}; exec "$@"', "sh"]
    command = ["ip", "netns", "exec", name, *become, *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **variables})


def main(program: str, words: list[str]) -> int:
    with Path(os.environ["FAKE_WORDS"]).open("a", encoding="utf-8") as file:
        file.write("\0".join([program, *words]) + "\n")
    told = sys.stdin.buffer.readline()
    if program == "ssh":
        host, line = words[-2:]
        if host not in KNOWN:
            sys.stderr.write(f"ssh: connect to host {host} port 22: No route to host\n")
            return 255
        started = [within(host, ["sh", "-c", line])]
    else:
        begin = words.index("sh")
        broken = os.environ.get("FAKE_BROKEN")  # a host without Python there
        started = [
            within(
                host,
                ["false" if word == sys.executable and host == broken else word for word in words[begin:]],
                **TASKS[program](node),
            )
            for node, host in enumerate(KNOWN)
        ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write(told)
        process.stdin.close()
    return max(process.wait() for process in started)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[0]).name, sys.argv[1:]))
