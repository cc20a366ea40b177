import pytest

from tfrecord_io.terminal.errors import UserError
from train.machine import devices
from train.machine.devices import DeviceOptions


def test_devices_asked_for_without_a_gpu_are_those_of_the_cpu_and_told(capsys):
    for options in (DeviceOptions(), DeviceOptions(gpus=1)):
        found = devices.configure_devices(options)
        is_printed = "warning: --devices 1: there is no GPU here" in capsys.readouterr().err
        assert is_printed == (options.gpus == 1 and not found.on_gpu)
    assert found.num_replicas == 1
    with pytest.raises(UserError, match="--devices 99: there are"):
        devices.configure_devices(DeviceOptions(gpus=99))
