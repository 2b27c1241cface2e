"""Without a way to the hub nobody waits for it."""

import os
import socket
import sys
from types import ModuleType
from typing import Any

import pytest

from msft.data.sources import OFFLINE, stay_offline_without_hub


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No address is known; which ones were asked for."""
    names: list[str] = []

    def unknown(host: str, port: None) -> Any:
        names.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setenv(OFFLINE, "")  # restored afterwards, whatever is set meanwhile
    for name in (OFFLINE, "HF_ENDPOINT", "http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    return names


def test_libraries_are_told_to_look_into_their_cache(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = ModuleType("huggingface_hub.constants")
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)
    stay_offline_without_hub()
    assert asked == ["huggingface.co"] * 2
    assert os.environ[OFFLINE] == "1"
    assert getattr(constants, OFFLINE) is True


@pytest.mark.parametrize(("name", "value"), [(OFFLINE, "0"), ("HTTPS_PROXY", "http://proxy:3128")])
def test_who_has_a_say_or_a_proxy_is_left_alone(
    name: str, value: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    stay_offline_without_hub()
    assert not asked
    assert os.environ.get(OFFLINE) in (None, "0")


@pytest.mark.usefixtures("asked")
def test_a_hub_that_is_found_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(host: str, port: None) -> list[str]:
        return ["an address"] if host == "hub.example" else []

    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example:8080")
    monkeypatch.setattr(socket, "getaddrinfo", known)
    stay_offline_without_hub()
    assert OFFLINE not in os.environ
