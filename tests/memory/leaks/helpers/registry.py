"""A registry of metrics, as many projects have one."""

METRICS = {}


def log_metric(name, value):
    METRICS.setdefault(name, []).append(value)  #: 1 stored_graph_helper_registry
