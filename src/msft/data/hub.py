"""The hub: whether there is a way to it from here."""

import os
import socket
import sys
from urllib.parse import urlsplit
from urllib.request import getproxies

HUB = "https://huggingface.co"
OFFLINE = "HF_HUB_OFFLINE"
_TRIES = 2


def ask_only_where_it_is() -> None:
    """Where nobody knows the hub's address, its libraries would ask again for most of a minute.
    They are told to look into their cache only, as HF_HUB_OFFLINE=1 tells them."""
    if OFFLINE in os.environ or getproxies() or _is_known():
        return
    os.environ[OFFLINE] = "1"
    for name in ("huggingface_hub.constants", "datasets.config"):  # where they have read it already
        if name in sys.modules:
            setattr(sys.modules[name], OFFLINE, True)


def _is_known() -> bool:
    host = urlsplit(os.environ.get("HF_ENDPOINT") or HUB).hostname
    for _ in range(_TRIES):
        try:
            return bool(socket.getaddrinfo(host, None))
        except socket.gaierror:
            continue
    return False
