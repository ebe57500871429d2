"""The rules of the contract. A rule takes the facts and yields findings; a new one is a function in the file
of its subject and an entry in :data:`RULES`.
"""

from __future__ import annotations

from typing import Tuple

from . import attention, config, engine, layers, mask, record, weights
from .common import Rule

RULES: Tuple[Rule, ...] = (
    config.types_are_right,  # first: what it notes as a wrong type is not judged again
    config.config_is_there,
    config.config_is_its_own,
    config.layer_config_is_there,
    config.model_type,
    config.architecture,
    mask.mask_is_there,
    mask.mask_is_where_it_is_read,
    mask.mask_means_mask,
    mask.masks_agree,
    mask.mask_embedding_fits,
    mask.tokenizer_is_known,
    mask.own_tokenizer_is_the_targets,
    layers.layer_ids_are_there,
    layers.layer_ids_are_layers,
    layers.layer_ids_avoid_the_last_on_sglang,
    layers.layer_ids_are_unique,
    layers.layer_ids_ascend,
    layers.layer_ids_fit_fc,
    layers.layer_ids_are_usual,
    layers.target_depth,
    weights.weights_are_dflash,
    weights.weights_are_complete,
    weights.shapes_fit,
    weights.nothing_else_is_there,
    weights.dtypes_agree,
    weights.quantisation_is_said,
    weights.config_describes_weights,
    weights.widths_agree,
    weights.heads_can_be_divided,
    weights.vocabularies_agree,
    weights.own_vocabulary_fits,
    attention.block_is_known,
    attention.block_is_plausible,
    attention.block_holds_the_draft,
    attention.drafter_reaches,
    attention.rope_theta_is_there,
    attention.rope_thetas_agree,
    attention.rope_theta_is_the_targets,
    attention.one_rope_counts,
    attention.rope_scaling_is_whole,
    attention.rotates_the_whole_head,
    attention.rope_scaling_is_the_targets,
    attention.layer_types_fit,
    attention.full_layer_is_the_last,
    attention.windows_have_a_size,
    attention.window_is_plausible,
    attention.windows_are_used,
    attention.absent_windows,
    config.norm_and_activation,
    config.absent_epsilon,
    record.the_record_agrees,
    engine.engine_reads_it_right,
)
