"""FlexFlow's figures on simulated clusters: bytes moved, plans against named ones, search time, dimensions.

    python benchmarks/flexflow.py transfers --budget 300         figure 1: bytes of NMT on 64 K80
    python benchmarks/flexflow.py plans --machine p100x16        figure 2: found plans against named ones
    python benchmarks/flexflow.py learnt                         figure 2: found plans against learnt placements
    python benchmarks/flexflow.py search-time --devices 4        figure 3: seconds to the plan of a plain chain
    python benchmarks/flexflow.py optimality                     figure 4: found plans against the best ones
    maniple run --nodes 2 --cores 1 benchmarks/flexflow.py measured          figure 5: plans run here
    python benchmarks/flexflow.py dimensions                     figure 6: what each dimension is good for
    python benchmarks/flexflow.py scaling --proposals 1500       figure 7: efficiency on 1 to 64 GPUs, a day of training

Each prints the rows of a table as they are done. With `--json FILE` they are kept, and a command that is given again
goes on where it was; `--write` puts it into docs/explanation/flexflow.md. Searches take seconds, or `--proposals`, with
which the same plans are found on any computer, idle or not. Every plan of a table is simulated alike. Batches are 64
samples for each GPU, 256 for AlexNet.
(Z. Jia, M. Zaharia, A. Aiken, Beyond Data and Model Parallelism for Deep Neural Networks, SysML 2019.)
"""

from __future__ import annotations

import click
from flexflow.dimensions import dimensions
from flexflow.learnt import learnt
from flexflow.measured import measured
from flexflow.optimality import optimality
from flexflow.plans import plans
from flexflow.scaling import scaling
from flexflow.search_time import search_time
from flexflow.transfers import transfers


@click.group(commands=[transfers, plans, search_time, optimality, measured, dimensions, scaling, learnt])
def main() -> None:
    """Reproduce a figure."""


if __name__ == "__main__":
    main()
