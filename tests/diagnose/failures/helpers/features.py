"""How are features taken from an encoder?"""


def embed(encoder, x):
    code = encoder(x).detach()  #: 1 no_grad_path_helper_detach
    return code / (1 + code.norm(dim=-1, keepdim=True))
