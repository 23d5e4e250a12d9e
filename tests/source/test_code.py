"""Code of two files can be equal: as a key, code is the one object, and so is what stands for it."""

import gc

from byname.source.code import ThisCode, stands_for


def test_code_is_a_key_by_itself():
    text = "def forward(x, w):\n    h = x * w\n    return h\n"
    first, second = (compile(text, file, "exec").co_consts[0] for file in ("<first>", "<second>"))
    assert first == second
    assert ThisCode(first) == ThisCode(first)
    assert len({ThisCode(first), ThisCode(second), ThisCode(first), ThisCode(None)}) == 3


def test_code_that_stands_for_other_code_is_known_by_itself():
    texts = [compile("def f():\n    return 1\n", file, "exec") for file in ("<one>", "<two>")]
    one, two = (text.co_consts[0] for text in texts)
    gc.collect()  # the code of tests before this one
    before = len(stands_for)
    made = [one.replace(co_name="g"), two.replace(co_name="g")]
    assert made[0] == made[1]
    stands_for[made[0]], stands_for[made[1]] = one, two
    assert stands_for[made[0]] is one
    assert stands_for[made[1]] is two
    assert stands_for[one] is one
    del made[0]
    gc.collect()
    assert stands_for[made[0]] is two
    del made
    gc.collect()
    assert len(stands_for) == before
