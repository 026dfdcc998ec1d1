"""A cluster of several hosts on one Linux machine: own networks, processes, names and links, by namespaces.

For a person or a benchmark, as root: `PYTHONPATH=tests python -m vcluster up 4`.
For a test: `with VirtualCluster(hosts=4) as cluster: …`, see `vcluster.cluster`.
"""
