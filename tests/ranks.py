"""A process that takes itself for one of several, which never meet: each records to a file of its own."""

from contextlib import contextmanager

import torch.distributed as dist


class _Agreed(dist.Store):
    """A store that has but one word."""

    def __init__(self, word):
        super().__init__()
        self.word = word

    def compare_set(self, *given):
        return self.word.encode()


@contextmanager
def as_rank(rank, world, run=""):
    """Be one of several processes of a run that never meet."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401 - which it registers

    store = _Agreed(run)  # which lives for as long as it is asked
    dist.init_process_group("fake", rank=rank, world_size=world, store=store)
    try:
        yield
    finally:
        dist.destroy_process_group()
