"""Many hosts on one machine: network namespaces on a bridge, PostgreSQL in one of them, workers in the others.

    network.py   namespaces, the bridge, links that can be cut
    proxy.py     latency and a narrow line in front of PostgreSQL, a process of its own
    cluster.py   servers, worker processes, load and evidence of one run
    scenarios.py what is done to the hosts, and what must hold

Needs root and `ip` (iproute2). It makes no interface of the machine's own: the bridge has a namespace too.
"""
