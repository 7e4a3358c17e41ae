package residency

import (
	"math"
	"slices"
)

// unit is the part of a GPU's capacity that one of its slots has.
const unit = 1 << 12

// device is a GPU.
type device struct {
	open      bool
	running   int32 // running instances
	class     int32 // its index in devices.byRunning; none if it has no capacity left
	instances int32
	slots     int32 // as configured by SetGPU
	capacity  int32 // for running instances, in units
	used      int32 // by running instances, in units
	hardware  int32 // its class, see SetClass
	limit     int64 // bytes of memory; 0 means no limit
	occupied  int64 // bytes used by instances that the pool lists on another GPU
	mem       usage
	queue     []int32 // instances that wait for room
}

// usage holds bytes of a GPU's memory, or those of one instance.
type usage struct {
	running int64 // of running, queued, starting and pinned instances, and occupied
	used    int64 // of instances on the GPU or in queue, bytes that stay while an instance is on the host, and occupied
	pinned  int64 // of pinned instances, included in running and used
	queued  int64 // of instances in queue, included in running and used
	leaving int64 // on their way out, of stopping and offloading instances
}

// fits reports whether instances and others that use mem bytes fit on the GPU.
func (d *device) fits(mem int64) bool { return d.limit == 0 || mem <= d.limit }

// free returns the bytes of a GPU that are neither used nor reserved.
func (d *device) free() int64 { return d.limit - d.mem.used - d.mem.leaving }

// available returns the bytes that instances of the pool can have at most.
func (d *device) available() int64 { return d.limit - d.occupied - d.mem.pinned }

// bound returns how many of the measured bytes count on a GPU. If the GPU can never have that
// amount free, bound returns the amount that it can have free, but no less than least. For
// example, an instance that used 12 GiB before and requests none counts for 6 GiB on a GPU where
// other programs leave 6 GiB: it may be able to run with that.
func (d *device) bound(measured, least int64) int64 {
	if measured == least || d.limit == 0 {
		return measured
	}
	return min(measured, max(least, d.available()))
}

// countedMem returns the bytes that a new instance of a function counts for.
func (d *device) countedMem(f *hotFields) int64 { return d.bound(f.countedMem, f.mem) }

// capacityFor returns the capacity that a running instance with a slice takes; 0 means a slot.
func (d *device) capacityFor(slice float64) int32 {
	if slice > 0 {
		return max(int32(math.Round(slice*float64(d.slots*unit))), 1)
	}
	return unit
}

// devices holds the GPUs and finds those with capacity left.
type devices struct {
	gpus         []device
	idle         []idleList // by GPU: its idle instances
	warm         []idleList // by GPU: the idle instances with memory on the GPU to evict
	firstWarm    [][2]int32 // by GPU: the functions of the first instances in warm, or none
	byRunning    []set      // by number of running instances: the GPUs with that number and remaining capacity
	freeCapacity int64      // remaining capacity of all GPUs, in units
	largest      int64      // memory of the largest open GPU; 0 means no limit, unmeasured unknown
	freeMem      maxTree    // by GPU: the result of MaxFreeMem if it were the only one
	visits       int64      // GPUs and pages of rows examined for places, for tests
	touched      func(function, gpu int32)
}

// unmeasured marks devices.largest as unknown. It is less than any memory size.
const unmeasured = -1

// largestGPU returns the memory of the largest open GPU, or 0 if one has no limit or if no GPU is
// open.
func (d *devices) largestGPU() int64 {
	if d.largest != unmeasured {
		return d.largest
	}
	d.largest = 0
	for i := range d.gpus {
		switch g := &d.gpus[i]; {
		case g.open && g.limit == 0:
			d.largest = 0
			return 0
		case g.open:
			d.largest = max(d.largest, g.limit)
		}
	}
	return d.largest
}

// GPUs returns the number of GPUs, including closed ones.
func (d *devices) GPUs() int { return len(d.gpus) }

// AnyFree reports whether any GPU has capacity left.
func (d *devices) AnyFree() bool { return d.freeCapacity > 0 }

// Free reports whether a GPU has capacity left.
func (d *devices) Free(gpu int32) bool { return d.gpus[gpu].used < d.gpus[gpu].capacity }

// EachFree calls yield with each GPU that has capacity left, in no particular order, until yield
// returns false.
func (d *devices) EachFree(yield func(gpu int32) bool) {
	for i := range d.byRunning {
		for gpu := range d.byRunning[i].all() {
			if !yield(gpu) {
				return
			}
		}
	}
}

// MaxFreeMem returns the most memory beyond that of running instances, among the GPUs with
// capacity left. It returns math.MaxInt64 if one of them has no limit, and -1 if there is no such
// GPU.
func (d *devices) MaxFreeMem() int64 { return d.freeMem.max() }

// updateFreeMem updates freeMem after a change of a GPU.
func (d *devices) updateFreeMem(gpu int32) {
	switch g := &d.gpus[gpu]; {
	case g.class == none:
		d.freeMem.set(gpu, -1)
	case g.limit == 0:
		d.freeMem.set(gpu, math.MaxInt64)
	default:
		d.freeMem.set(gpu, max(g.limit-g.mem.running, -1))
	}
}

// maxTree holds a value for each GPU, and finds the largest in constant time. Node i of the
// binary tree has the children 2i and 2i+1 and holds their maximum. Node 1 is the root, and the
// second half of the slice holds the values of the GPUs.
type maxTree []int64

// max returns the largest value, or -1 without GPUs.
func (t maxTree) max() int64 {
	if len(t) == 0 {
		return -1
	}
	return t[1]
}

// of returns the value of a GPU.
func (t maxTree) of(gpu int32) int64 { return t[len(t)/2+int(gpu)] }

// nextPage returns the first page of 64 GPUs, from the given one on, that has a value of at least
// least, or -1.
func (t maxTree) nextPage(page int, least int64) int {
	pages := max(len(t)/2/pageGPUs, 1)
	i := pages + page
	for t[i] < least {
		for i&1 == 1 { // the last child: continue behind its parent
			i /= 2
		}
		if i == 0 {
			return -1
		}
		i++
	}
	for i < pages {
		if i *= 2; t[i] < least {
			i++
		}
	}
	return i - pages
}

// set sets the value of a GPU.
func (t *maxTree) set(gpu int32, value int64) {
	for half := len(*t) / 2; int(gpu) >= half; half = len(*t) / 2 {
		larger := slices.Repeat(maxTree{-1}, max(4*half, 2))
		for g, v := range (*t)[half:] {
			larger.set(int32(g), v)
		}
		*t = larger
	}
	nodes, i := *t, uint(len(*t)/2+int(gpu))
	for nodes[i] != value {
		if nodes[i] = value; i == 1 {
			return
		}
		value = max(value, nodes[i^1])
		i /= 2
	}
}

// updateFirstWarm updates firstWarm after a change of warm. A comparison of many GPUs mostly reads only
// firstWarm, which is so small that it stays in the caches.
func (d *devices) updateFirstWarm(gpu int32) {
	first := &d.firstWarm[gpu]
	*first = [2]int32{none, none}
	for i := range min(len(d.warm[gpu]), len(first)) {
		first[i] = d.warm[gpu][i].function
	}
}

// SetSlots changes the number of concurrent invocations of a GPU. Running invocations beyond it
// continue. Shares of the GPU still refer to the slots of SetGPU.
func (d *devices) SetSlots(gpu int32, slots int) {
	d.addLoad(gpu, int32(slots)*unit-d.gpus[gpu].capacity, 0, 0)
}

// addLoad adds to the capacity of a GPU, the number of its running instances, and the capacity
// that they take.
func (d *devices) addLoad(gpu, capacity, instances, units int32) {
	g := &d.gpus[gpu]
	d.freeCapacity -= int64(max(g.capacity-g.used, 0))
	g.capacity += capacity
	g.running += instances
	g.used += units
	d.freeCapacity += int64(max(g.capacity-g.used, 0))
	d.classify(gpu)
	d.updateFreeMem(gpu)
	d.touch(none, gpu)
}

// classify moves a GPU to the set in byRunning for its number of running instances, or to no set
// if it has no capacity left.
func (d *devices) classify(gpu int32) {
	g, running := &d.gpus[gpu], none
	if g.used < g.capacity {
		running = g.running
	}
	if running == g.class {
		return
	}
	if g.class != none {
		d.byRunning[g.class].remove(gpu)
	}
	if g.class = running; running == none {
		return
	}
	for int(running) >= len(d.byRunning) {
		d.byRunning = append(d.byRunning, set{})
	}
	d.byRunning[running].add(gpu)
}

// touch reports a change of a GPU to Config.Touched.
func (d *devices) touch(function, gpu int32) {
	if d.touched != nil {
		d.touched(function, gpu)
	}
}
