"""A Ray cluster for a test: a head that runs nothing, and two nodes of one CPU each.

Prints the cluster's address, removes a node at once for every line it reads, and ends the cluster
when its input ends. Its processes end with this one, even when this one is killed.
"""

import sys
from typing import Any

from ray.cluster_utils import Cluster

STORE_BYTES = 80 * 2**20
# A node that is gone refuses connections, so that it is missed after two of these periods.
SYSTEM_CONFIG = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 100,
    "health_check_failure_threshold": 2,
}


def main() -> None:
    head: dict[str, Any] = {"num_cpus": 0, "include_dashboard": False}
    head |= {"object_store_memory": STORE_BYTES, "_system_config": SYSTEM_CONFIG}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        nodes = [
            cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, wait=False)
            for _ in range(2)
        ]
        cluster.wait_for_nodes()
        print(cluster.address, flush=True)
        for _ in sys.stdin:
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            print("removed", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
