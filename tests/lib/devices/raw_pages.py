"""The back door to tensors that are pages of KV memory, on whatever device."""

import torch


class RawPages:
    """Pages as bytes: *place* gives what of them belongs to a token."""

    def __init__(self, pages, place):
        self.pages = pages
        self.place = place

    def get(self, layer, plane, position):
        page, where = self.place(layer, plane, position)
        return page[where].cpu().contiguous().numpy().tobytes()

    def put(self, layer, plane, position, row):
        page, where = self.place(layer, plane, position)
        old = page[where]
        new = torch.frombuffer(bytearray(row), dtype=old.dtype).view(old.shape)
        page[where] = new.to(old.device)

    def everything(self):
        return b"".join(page.cpu().contiguous().numpy().tobytes() for page in self.pages)
