package rollout

import "os"

const holdVar = "ROLLOUT_TEST_HOLD"

func hold() { os.Exit(0) }
