select lane, cap from lane where lane = %(lane)s for no key update
