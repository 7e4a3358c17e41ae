package journal

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/bbolt"
)

// logMagic begins each segment of the log of earlier versions.
const logMagic = "gfaas-async 1\n"

// importLog moves the calls from the append-only log of earlier versions to the database. A
// later record of a call replaces an earlier one. From a segment with an incomplete or
// damaged record, it imports the records before that one, logs a warning and renames the
// segment to NAME.log.incomplete. It removes the other segments.
func (j *Journal) importLog() error {
	segments, err := filepath.Glob(filepath.Join(j.dir, "*.log")) // their names sort by age
	if err != nil || len(segments) == 0 {
		return err
	}
	if err := j.forEach(func(key uint64, h head) { j.index.set(h.ID, key) }); err != nil { // an earlier import may have been killed
		return err
	}
	unread := map[string]int{}
	for _, path := range segments {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		records, ok := bytes.CutPrefix(data, []byte(logMagic))
		if !ok && !strings.HasPrefix(logMagic, string(data)) {
			return fmt.Errorf("%s is not a journal of gfaas", path)
		}
		err = j.db.Update(func(tx *bbolt.Tx) error {
			unread[path], err = j.index.importRecords(tx.Bucket(bucket), records)
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, path := range segments {
		if unread[path] > 0 {
			j.opts.Log.Warn("the end of a log of asynchronous calls is incomplete or damaged, and was not imported",
				"file", path+".incomplete", "bytes", unread[path])
			err = os.Rename(path, path+".incomplete")
		} else {
			err = os.Remove(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// importRecords imports the records of a segment until one is incomplete or damaged. It
// returns the number of bytes from that record to the end, 0 if there is none. A record
// is the length of all but its first 8 bytes, a CRC-32C of the length and the rest, the
// length of the JSON (4 bytes each, little-endian), the JSON, and a short body.
func (x *index) importRecords(calls *bbolt.Bucket, records []byte) (unread int, err error) {
	const headSize = 12
	for len(records) >= headSize {
		length, text := binary.LittleEndian.Uint32(records), binary.LittleEndian.Uint32(records[8:])
		end := uint64(length) + 8
		if end > uint64(len(records)) || uint64(text)+headSize > end {
			break
		}
		r := records[:end]
		sum := crc32.Update(crc32.Checksum(r[:4], castagnoli()), castagnoli(), r[8:])
		var h struct {
			head
			Note bool `json:"note"` // the record has only new counts
		}
		if sum != binary.LittleEndian.Uint32(r[4:]) || json.Unmarshal(r[headSize:headSize+text], &h) != nil || h.ID == "" {
			break
		}
		records = records[end:]
		body := r[headSize+text:]
		key := x.key(h.ID)
		if key == nil {
			key = x.add(h.ID)
		}
		if h.Note {
			old, content, ok := decode(calls.Get(key))
			if !ok {
				continue
			}
			old.Attempts, old.Posts = h.Attempts, h.Posts
			h.head, body = old, content
		}
		v, err := encode(h.head, body)
		if err == nil {
			err = calls.Put(key, v)
		}
		if err != nil {
			return 0, err
		}
	}
	return len(records), nil
}
