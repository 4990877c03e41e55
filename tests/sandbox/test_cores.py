"""Which core a box works on."""

from sandbox.cores import Cores


class FakeBox:
    def __init__(self, cpu: int | None = None, *, is_movable: bool = True) -> None:
        self.cpu = cpu
        self._is_movable = is_movable

    def move(self, cpu: int) -> bool:
        self.cpu = cpu if self._is_movable else self.cpu
        return self._is_movable


def test_boxes_at_work_spread_over_the_cores() -> None:
    cores, boxes = Cores({0, 1}), [FakeBox(), FakeBox(), FakeBox()]
    with cores.at_work(boxes[0]), cores.at_work(boxes[1]):
        assert [box.cpu for box in boxes] == [0, 1, None]
    with cores.at_work(boxes[1]), cores.at_work(boxes[2]):
        assert [box.cpu for box in boxes] == [0, 1, 0]


def test_a_box_stays_where_it_is_as_well_off() -> None:
    cores, box = Cores({0, 1}), FakeBox(1)
    with cores.at_work(box):
        assert box.cpu == 1


def test_a_box_that_cannot_move_is_counted_where_it_is() -> None:
    cores, stuck, free = Cores({0, 1}), FakeBox(0, is_movable=False), FakeBox(0)
    with cores.at_work(stuck), cores.at_work(free):
        assert (stuck.cpu, free.cpu) == (0, 1)


def test_a_call_that_fails_frees_its_core() -> None:
    cores, box = Cores({0, 1}), FakeBox(0)
    try:
        with cores.at_work(box):
            raise ValueError
    except ValueError:
        pass
    with cores.at_work(box), cores.at_work(FakeBox(0)):
        assert box.cpu == 0
