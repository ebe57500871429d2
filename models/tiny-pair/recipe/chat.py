"""The form of a conversation: as text for training, and as the chat template that servers render.

Both must give the same characters; ``check.py`` compares them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from .grammar import KINDS, Exercise, draw

NO_THOUGHT = "<think>\n\n</think>\n\n"
THOUGHTS = {
    "prose": "The user asks about a service. I name the steps.",
    "json": "The user wants a JSON record. I fill in the fields.",
    "code": "The user wants a function. I write a loop.",
    "arithmetic": "The user wants numbers. I add the step each time.",
    "list": "The user wants a list. I follow the known order.",
}
# As Qwen3's: thinking off puts an empty thought in front of the answer; earlier thoughts are dropped.
TEMPLATE = (
    "{%- for message in messages %}"
    "{%- set content = message['content'] %}"
    "{%- if message['role'] == 'assistant' and '</think>' in content %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}"
    "{%- endif %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}"
    "{%- endif %}"
)


@dataclass(frozen=True)
class Conversation:
    """A system message (may be empty), answered exercises, and the exercise to be answered."""

    system: str
    earlier: tuple[Exercise, ...]
    last: Exercise

    def messages(self) -> list[dict[str, str]]:
        """The conversation up to and including the last question, as a chat API takes it."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for exercise in self.earlier:
            messages.append({"role": "user", "content": exercise.question})
            messages.append({"role": "assistant", "content": exercise.answer})
        return [*messages, {"role": "user", "content": self.last.question}]

    def prompt(self, *, thinking: bool = False) -> str:
        """The text a server feeds to the target for ``messages()``."""
        turns = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in self.messages()]
        return "".join(turns) + "<|im_start|>assistant\n" + ("" if thinking else NO_THOUGHT)

    def reply(self, *, thinking: bool = False) -> str:
        """What the target is to write after ``prompt()``, and what may follow the end of the turn."""
        thought = f"<think>\n{THOUGHTS[self.last.kind]}\n</think>\n\n" if thinking else ""
        return f"{thought}{self.last.answer}<|im_end|>\n<|endoftext|>"


def draw_conversation(
    rng: random.Random, weights: Sequence[float], *, short_share: float, max_earlier: int = 3
) -> Conversation:
    """Draw a trained conversation; ``weights`` are per kind, a ``short_share`` are a single question."""
    last = draw(rng.choices(KINDS, weights)[0], rng)
    if rng.random() < short_share:
        return Conversation("", (), last)
    earlier = tuple(draw(rng.choice(KINDS), rng) for _ in range(rng.randint(0, max_earlier)))
    notes = " ".join(draw("prose", rng).answer for _ in range(rng.randint(0, 2)))
    return Conversation(notes, earlier, last)
