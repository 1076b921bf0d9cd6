select lane from lane_floor order by lane for no key update
