"""What runs beside a training leaves its random numbers as they are."""

from repdyn.utils.caller_state import isolated_rng


def test_cuda_is_restored_once_it_is_in_use_and_never_initialized(monkeypatch):
    restored = []
    monkeypatch.setattr("torch.cuda.get_rng_state_all", lambda: ["state of device 0"])
    monkeypatch.setattr("torch.cuda.set_rng_state_all", restored.append)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    with isolated_rng():
        pass
    assert restored == []
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    with isolated_rng():
        pass
    assert restored == [["state of device 0"]]
