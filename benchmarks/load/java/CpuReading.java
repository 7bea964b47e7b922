import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;

/** One look at the CPU clocks of named processes, of this process and of the machine; seconds. */
record CpuReading(Map<String, Double> named, double own, double host) {
    /** 1/USER_HZ, which Linux fixes at 100 for every architecture we run on. */
    private static final double SECONDS_PER_TICK = 0.01;

    static CpuReading now(Map<String, Long> pids) {
        Map<String, Double> named = new LinkedHashMap<>();
        pids.forEach((name, pid) -> named.put(name, ofProcess(pid)));
        return new CpuReading(named, ofProcess(ProcessHandle.current().pid()), ofHost());
    }

    /** What was spent between an earlier reading and this one. */
    CpuReading since(CpuReading earlier) {
        Map<String, Double> spent = new LinkedHashMap<>();
        // A process that ended in between reads 0: its time is lost, and a negative one would be a lie.
        named.forEach((name, value) -> spent.put(name, Math.max(0, value - earlier.named.get(name))));
        return new CpuReading(spent, own - earlier.own, host - earlier.host);
    }

    /** Of a difference: what neither the named processes nor this one account for. */
    double strangers() {
        return Math.max(0, host - own - named.values().stream().mapToDouble(Double::doubleValue).sum());
    }

    private static double ofProcess(long pid) {
        try {
            String stat = Files.readString(Path.of("/proc/" + pid + "/stat"));
            // The command's name may hold blanks and brackets: fields are counted from the last bracket.
            String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
            return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) * SECONDS_PER_TICK;
        } catch (IOException gone) {
            return 0;
        }
    }

    private static double ofHost() {
        try {
            String[] fields = Files.readAllLines(Path.of("/proc/stat")).get(0).trim().split("\\s+");
            long busy = 0;
            for (int i = 1; i <= 8; i++) {
                busy += i == 4 || i == 5 ? 0 : Long.parseLong(fields[i]); // neither idle nor iowait, but steal
            }
            return busy * SECONDS_PER_TICK;
        } catch (IOException none) {
            return 0;
        }
    }
}
