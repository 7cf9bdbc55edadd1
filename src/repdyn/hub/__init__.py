"""Published models: revisions of a hub repository, downloads, weights, and models loaded from them."""
