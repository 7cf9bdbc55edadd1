"""A GGUF file of a model, as llama.cpp writes it."""

from __future__ import annotations

import gguf
import numpy as np
import torch


def write_gguf(model, path, quantization) -> None:
    """Write a Llama model as llama.cpp does, and leave in the model what can be read of its
    quantised weights.
    """
    config, names = (
        model.config,
        gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers),
    )
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(getattr(gguf.LlamaFileType, f"MOSTLY_{quantization.name}"))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    for name, weight in model.state_dict().items():
        values = weight.numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # whose halves llama.cpp interleaves
            halves = values.reshape(config.num_attention_heads, 2, -1, values.shape[1])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        kind = quantization if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        stored = gguf.quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(names.get_name(name, (".weight",)), stored, raw_dtype=kind)
        read = gguf.dequantize(stored, kind)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            halves = read.reshape(config.num_attention_heads, -1, 2, values.shape[1])
            read = halves.swapaxes(1, 2).reshape(values.shape)
        weight.copy_(torch.from_numpy(read.copy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
