"""Chat templates: well-known ones by name, and what a sub-dataset adds to a template.

The texts are written for msft from the public descriptions of the formats. They write earlier turns
the same whatever follows, so that msft can tell the assistant's tokens apart. A model that has a
template of its own needs none of them; they are for base models.

What a sub-dataset adds (a system prompt, `enable_thinking` and the like) becomes a part of the
template's text. So a template says all that there is to know of how conversations are written.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

_CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + end + '\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
_QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
_LLAMA3 = (
    "{{- bos_token or '' }}"
    "{%- for message in messages %}"
    "{%- set role = 'ipython' if message['role'] == 'tool' else message['role'] %}"
    "{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}"
    "{{- message['content'] | trim + end }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{%- endif %}"
)
_ZEPHYR = (
    "{%- for message in messages %}"
    "{{- '<|' + message['role'] + '|>\n' + message['content'] + end + '\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{%- endif %}"
)
_SYSTEM_FIRST = (
    "{%- set system = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}"
    "{%- for message in messages %}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{- raise_exception('it has no turn of the ' + message['role']) }}"
    "{%- endif %}"
    "{%- set first = loop.index0 == (1 if system else 0) %}"
)
"""The system's words stand at the start of the user's first turn."""
_GEMMA = (
    "{{- bos_token or '' }}"
    f"{_SYSTEM_FIRST}"
    "{%- if message['role'] != 'system' %}"
    "{%- set role = 'model' if message['role'] == 'assistant' else 'user' %}"
    "{%- set before = system + '\n\n' if system and first else '' %}"
    "{{- '<start_of_turn>' + role + '\n' + before + message['content'] | trim + end + '\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}"
)
_LLAMA2 = (
    f"{_SYSTEM_FIRST}"
    "{%- if message['role'] == 'user' %}"
    "{%- set before = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' if system and first else '' %}"
    "{{- (bos_token or '') + '[INST] ' + before + message['content'] | trim + ' [/INST]' }}"
    "{%- elif message['role'] == 'assistant' %}"
    "{{- ' ' + message['content'] | trim + ' ' + end }}"
    "{%- endif %}"
    "{%- endfor %}"
)
_MISTRAL = (
    "{{- bos_token or '' }}"
    f"{_SYSTEM_FIRST}"
    "{%- if message['role'] == 'user' %}"
    "{%- set before = system + '\n\n' if system and first else '' %}"
    "{{- '[INST] ' + before + message['content'] | trim + ' [/INST]' }}"
    "{%- elif message['role'] == 'assistant' %}"
    "{{- ' ' + message['content'] | trim + end }}"
    "{%- endif %}"
    "{%- endfor %}"
)


def _ended_by(token: str, body: str) -> str:
    """A template whose turns end with a token; empty: with the tokenizer's end-of-text token."""
    return f"{{%- set end = {json.dumps(token) if token else 'eos_token'} %}}{body}"


def _literal(value: Any) -> str:
    """A value as Jinja writes it."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_literal(k)}: {_literal(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def with_system(template: str, prompt: str) -> str:
    """The template, with a system prompt for conversations that begin with none."""
    turn = _literal([{"role": "system", "content": prompt}])
    known = "messages[0]['role'] == 'system'"
    return f"{{%- set messages = messages if {known} else {turn} + messages %}}{template}"


def with_variables(template: str, variables: Mapping[str, Any]) -> str:
    """The template, with values for variables that it asks for."""
    return "".join(f"{{%- set {k} = {_literal(v)} %}}" for k, v in variables.items()) + template


TEMPLATES = {
    "chatml": _ended_by("<|im_end|>", _CHATML),
    "qwen": _ended_by("<|im_end|>", with_system(_CHATML, _QWEN_SYSTEM)),
    "llama3": _ended_by("<|eot_id|>", _LLAMA3),
    "llama2": _ended_by("", _LLAMA2),
    "mistral": _ended_by("", _MISTRAL),
    "gemma": _ended_by("<end_of_turn>", _GEMMA),
    "zephyr": _ended_by("", _ZEPHYR),
}
"""What `chat_template` may name. `qwen` is Qwen 2.5's, `gemma` that of Gemma 1 to 3."""

_END = re.compile(r"{%- set end = (\"[^\"]+\") %}")


def missing_end(template: str, tokenizer: Any) -> str:
    """The token that ends the turns of a template of ours, where this tokenizer has no such token;
    empty where all is well."""
    end = _END.search(template) if template in TEMPLATES.values() else None
    token = json.loads(end[1]) if end else ""
    return token if token and len(tokenizer.encode(token, add_special_tokens=False)) > 1 else ""


def fitted(template: str, tokenizer: Any) -> str:
    """A template for a tokenizer: a turn must end with one token, at which a generation stops. So
    the end-of-text token takes the place of an end that the tokenizer does not have."""
    return (
        _END.sub("{%- set end = eos_token %}", template)
        if missing_end(template, tokenizer)
        else template
    )
