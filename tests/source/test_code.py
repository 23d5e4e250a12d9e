"""Code of two files can be equal: as a key, code is the one object, and so is what stands for it."""

import gc

from byname.source.code import CodeKey, original_code


def test_code_is_a_key_by_itself():
    text = "def forward(x, w):\n    h = x * w\n    return h\n"
    first, second = (compile(text, file, "exec").co_consts[0] for file in ("<first>", "<second>"))
    assert first == second
    assert CodeKey(first) == CodeKey(first)
    assert len({CodeKey(first), CodeKey(second), CodeKey(first), CodeKey(None)}) == 3


def test_code_that_stands_for_other_code_is_known_by_itself():
    texts = [compile("def f():\n    return 1\n", file, "exec") for file in ("<one>", "<two>")]
    one, two = (text.co_consts[0] for text in texts)
    gc.collect()  # the code of tests before this one
    before = len(original_code)
    made = [one.replace(co_name="g"), two.replace(co_name="g")]
    assert made[0] == made[1]
    original_code[made[0]], original_code[made[1]] = one, two
    assert original_code[made[0]] is one
    assert original_code[made[1]] is two
    assert original_code[one] is one
    del made[0]
    gc.collect()
    assert original_code[made[0]] is two
    del made
    gc.collect()
    assert len(original_code) == before
